"""Train every kind of attention on the same text in the same order, with several seeds.

    python apps/text_generation/compare.py                  an hour on two cores
    python apps/text_generation/compare.py --preset smoke   seconds

Into --out go curves.png (the held-out loss over updates), table.md, and a run folder for each
attention and seed. A comparison that was stopped continues with the same command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import language  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Annotated, get_args

import tyro

from language.presets import PRESETS, Attention, PresetName, Recipe
from language.tokens import Texts, name_dataset, read_tokens
from language.training import APP, describe_run, train_model
from linattn_lab.compare import Curve, Display, compare
from linattn_lab.script import (
    preset_flags,
    require_at_least,
    require_one_process,
    run_script,
)
from linattn_lab.seeds import read_figures, repeat, with_noise
from linattn_lab.tables import decimals
from linattn_lab.trainings import Trainings, Variant
from linattn_models.training import TrainingFlags

COLUMNS = {
    "parameters": lambda row: f"{row['parameters']:,}",
    "updates": lambda row: f"{row['steps']:,}",
    "seeds": lambda row: f"{row['seeds']}",
    "held out: nats per byte": lambda row: with_noise(row, "loss", lambda x: decimals(x, 3)),
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """What is compared, and where it goes."""

    preset: PresetName
    """smoke: seconds; laptop: minutes on two cores; large: hours of a GPU."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    data: tuple[Path, ...] = ()
    """Files and folders, read as bytes; the source of Python's standard library if not given."""
    seeds: int = 2
    """Trainings of each attention, with the seeds --seed, --seed + 1, ..."""
    out: Path | None = None
    """Folder for all of it; runs/text_generation/compare-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/text_generation."""
    resume: bool = False
    """Keep the runs that have ended, and continue one that was stopped."""


def main() -> None:
    """Trains what is not trained yet, draws, prints the table, and publishes a copy."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, description=__doc__)
    require_one_process()
    flags.recipe.training.config()  # refused before files are read
    require_at_least(flags, {"seeds": 1})
    out = flags.out or Path("runs", APP, f"compare-{flags.preset}")
    texts = read_tokens(flags.data, None, out)
    variants = [variant(flags, texts, attention) for attention in get_args(Attention)]
    trainings = Trainings(out, repeat(variants, flags.seeds))
    if not flags.resume:
        trainings.refuse_runs()
    display = Display(
        COLUMNS,
        [Curve("updates", "loss")],
        figures=lambda rows: read_figures(rows, "loss", "loss"),
        ylabel="held out, nats per byte",
        judged={"loss": "The held-out loss"},
        baseline="softmax",
    )
    print(compare(trainings, display, publish_to=flags.publish))


def variant(flags: Flags, texts: Texts, attention: Attention) -> Variant:
    """The training of one attention."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        return train_model(
            dataclasses.replace(flags.recipe, training=training),
            texts,
            attention=attention,
            preset=flags.preset,
            dataset=name_dataset(flags.data),
            out=out,
            resume=resume,
        )

    settings = {
        **describe_run(flags.recipe, texts, attention, name_dataset(flags.data)),
        "model": {"transformer": flags.recipe.transformer(attention).to_dict()},
    }
    return Variant(attention, flags.recipe.training, train, settings)


if __name__ == "__main__":
    run_script(main)
