"""Train every kind of attention to copy, on the same sequences in the same order.

    python apps/copy_task/compare.py                        minutes; the paper's figure 2
    python apps/copy_task/compare.py --preset smoke         seconds

First a few updates of each attention are timed, in turn; other work on the machine during the
trainings changes no number. Into --out go curves.png (the loss over updates, and over seconds),
table.md, figures.json, timings.json, and a run folder for each attention and seed. A comparison
that was stopped continues with the same command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import copying  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro

from copying.measures import copy_loss
from copying.model import build_model
from copying.presets import PRESETS, Attention, PresetName, Recipe
from copying.training import APP, make_training_data, train_model
from linattn_lab.compare import TIMES, Budget, Columns, Curve, Display, compare
from linattn_lab.runs import make_folders
from linattn_lab.script import preset_flags, require_at_least, require_one_process, run_script
from linattn_lab.seeds import read_figures, repeat, with_noise
from linattn_lab.tables import figure
from linattn_lab.trainings import Trainings, Variant
from linattn_lab.updates import UpdateTimes, measure_updates, read_times
from linattn_models.training import TrainingFlags

COLUMNS: Columns = {
    "updates": lambda run: f"{run['steps']:,}",
    "parameters": lambda run: f"{run['parameters']:,}",
    "s per update": lambda run: figure(run["seconds_per_update"]),
    "seeds": lambda run: f"{run['seeds']}",
    "held out: nats per symbol": lambda run: with_noise(run, "loss"),
    "symbols right": lambda run: with_noise(run, "accuracy", lambda x: f"{x:.2%}"),
    "whole copies right": lambda run: with_noise(run, "sequence_accuracy", lambda x: f"{x:.1%}"),
}
# Of the loss in training, as in the paper's figure 2: each sequence is drawn anew, so that few were
# seen before.
CURVES = (
    Curve("updates", "loss", "train"),
    Curve("seconds of updates", "loss", "train", over="pace"),
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """What is compared, and where it goes."""

    preset: PresetName
    """smoke: seconds; laptop: minutes on two cores; paper: the paper's own numbers."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    out: Path | None = None
    """Folder for all of it; runs/copy_task/compare-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/copy_task."""
    seeds: int = 1
    """Trainings of each attention, with the seeds --seed, --seed + 1, ..."""
    rounds: int = 7
    """Turns that each attention has while updates are timed."""
    resume: bool = False
    """Keep the runs that have ended, and continue one that was stopped."""


def main() -> None:
    """Trains what is not trained yet, draws, prints the table, and publishes a copy."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, description=__doc__)
    require_one_process()
    require_at_least(flags, {"seeds": 1, "rounds": 1})
    flags.recipe.training.config()  # refused before a folder is made
    out = flags.out or Path("runs", APP, f"compare-{flags.preset}")
    variants = [variant(flags, attention) for attention in get_args(Attention)]
    trainings = Trainings(out, repeat(variants, flags.seeds))
    if not flags.resume:
        trainings.refuse_runs()
    make_folders(out, flags.publish)
    budget = Budget(measure_once(out / TIMES, flags))
    display = Display(
        COLUMNS,
        CURVES,
        figures=lambda rows: read_figures(rows, "loss", "loss"),
        ylabel="cross-entropy, nats per symbol",
        log_scale=True,
        judged={"loss": "The held-out loss"},
    )
    print(compare(trainings, display, budget=budget, publish_to=flags.publish))


def measure_once(file: Path, flags: Flags) -> UpdateTimes:
    """What an update of each attention takes, as timings.json has it."""
    recipe, names = flags.recipe, get_args(Attention)

    def measure() -> dict[str, Any]:
        models = {name: build_model(recipe, name) for name in names}
        data = make_training_data(recipe)
        return measure_updates(models, data, copy_loss, recipe.training, flags.rounds)

    sizes = {**dataclasses.asdict(recipe), "training": {"batch_size": recipe.training.batch_size}}
    return read_times(file, {"preset": flags.preset, **sizes}, names, measure)


def variant(flags: Flags, attention: Attention) -> Variant:
    """The training of one attention."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        recipe = dataclasses.replace(flags.recipe, training=training)
        return train_model(recipe, attention, flags.preset, out, resume)

    model = build_model(flags.recipe, attention).to_dict()
    own = {"attention": attention, "held_out": flags.recipe.held_out, "model": model}
    return Variant(attention, flags.recipe.training, train, own)


if __name__ == "__main__":
    run_script(main)
