"""Train every kind of attention to copy, on the same sequences in the same order.

    python apps/copy_task/compare.py                        minutes; the paper's figure 2
    python apps/copy_task/compare.py --preset smoke         seconds

Into --out go curves.png (the loss over updates, and over time), table.md, and a run folder for each
attention. A comparison that was stopped continues with the same command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import copying  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
import math
from pathlib import Path
from typing import Annotated, get_args

import tyro

from copying.model import build_model
from copying.presets import PRESETS, Attention, PresetName, Recipe
from copying.training import APP, train_model
from linattn_lab.compare import Curve, Display, Rows, compare
from linattn_lab.script import preset_flags, require_at_least, require_one_process, run_script
from linattn_lab.seeds import repeat, with_noise
from linattn_lab.tables import figure
from linattn_lab.trainings import Trainings, Variant
from linattn_models.training import TrainingFlags

COLUMNS = {
    "updates": lambda run: f"{run['steps']:,}",
    "parameters": lambda run: f"{run['parameters']:,}",
    "s of training": lambda run: f"{run['train_seconds']:,.0f}",
    "held out: nats per symbol": lambda run: with_noise(run, "loss", figure),
    "symbols right": lambda run: f"{run['metrics']['accuracy']:.2%}",
    "whole copies right": lambda run: f"{run['metrics']['sequence_accuracy']:.1%}",
}
# Of the loss in training, as in the paper's figure 2: each sequence is drawn anew, so that few were
# seen before.
CURVES = (
    Curve("updates", "loss", "train"),
    Curve("seconds of training", "loss", "train", over="seconds"),
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
    resume: bool = False
    """Keep the runs that have ended, and continue one that was stopped."""


def main() -> None:
    """Trains what is not trained yet, draws, prints the table, and publishes a copy."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, "laptop", description=__doc__)
    require_one_process()
    require_at_least(flags, {"seeds": 1})
    flags.recipe.training.config()  # refused before a folder is made
    out = flags.out or Path("runs", APP, f"compare-{flags.preset}")
    variants = [variant(flags, attention) for attention in get_args(Attention)]
    trainings = Trainings(out, repeat(variants, flags.seeds))
    if not flags.resume:
        trainings.refuse_runs()
    display = Display(
        COLUMNS, CURVES, read_losses, ylabel="cross-entropy, nats per symbol", log_scale=True
    )
    print(compare(trainings, display, publish_to=flags.publish))


def variant(flags: Flags, attention: Attention) -> Variant:
    """The training of one attention."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        recipe = dataclasses.replace(flags.recipe, training=training)
        return train_model(recipe, attention, flags.preset, out, resume)

    model = build_model(flags.recipe, attention).to_dict()
    own = {"attention": attention, "held_out": flags.recipe.held_out, "model": model}
    return Variant(attention, flags.recipe.training, train, own)


def read_losses(rows: Rows) -> dict[str, float]:
    """The loss of each attention on held-out sequences, and what the paper's claims compare."""
    metrics = {name: run["metrics"]["loss"] for name, run in rows.items()}
    losses = {name: math.nan if loss is None else loss for name, loss in metrics.items()}
    return {
        **{f"{name}/loss": loss for name, loss in losses.items()},
        **{f"{name}/loss-over-linear": loss / losses["linear"] for name, loss in losses.items()},
        "linear/loss-above-softmax": losses["linear"] - losses["softmax"],
    }


if __name__ == "__main__":
    run_script(main)
