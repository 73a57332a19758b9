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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro

from language.presets import PRESETS, Attention, PresetName, Recipe
from language.tokens import Texts, name_dataset, read_tokens
from language.training import APP, describe_run, train_model
from linattn_lab.compare import Curve, Display, Rows, compare
from linattn_lab.script import (
    preset_flags,
    require_at_least,
    require_one_process,
    run_script,
)
from linattn_lab.tables import decimals
from linattn_lab.trainings import Summary, Trainings, Variant
from linattn_models.training import TrainingFlags


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

    def all_seeds(self) -> range:
        """The seed of each training of an attention."""
        first = self.recipe.training.seed
        return range(first, first + self.seeds)


def main() -> None:
    """Trains what is not trained yet, draws, prints the table, and publishes a copy."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, "laptop", description=__doc__)
    require_one_process()
    flags.recipe.training.config()  # refused before files are read
    require_at_least(flags, {"seeds": 1})
    out = flags.out or Path("runs", APP, f"compare-{flags.preset}")
    texts = read_tokens(flags.data, None, out)
    trainings = Trainings(out, variants(flags, texts))
    if not flags.resume:
        trainings.refuse_runs()
    display = Display(
        columns(flags.all_seeds()),
        [Curve("updates", "loss")],
        figures=lambda rows: {f"{x}/loss": run["metrics"]["loss"] for x, run in rows.items()},
        ylabel="held out, nats per byte",
        merge=merge_seeds,
        show=lambda name: name.endswith(f"-seed{flags.all_seeds()[0]}"),
    )
    print(compare(trainings, display, publish_to=flags.publish))


def variants(flags: Flags, texts: Texts) -> list[Variant]:
    """The trainings: each attention with each seed, one seed after the other."""
    return [
        variant(flags, texts, attention, seed)
        for seed in flags.all_seeds()
        for attention in get_args(Attention)
    ]


def variant(flags: Flags, texts: Texts, attention: Attention, seed: int) -> Variant:
    """The training of one attention with one seed."""

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

    training = dataclasses.replace(flags.recipe.training, seed=seed)
    settings = {
        **describe_run(flags.recipe, texts, attention, name_dataset(flags.data)),
        "model": {"transformer": flags.recipe.transformer(attention).to_dict()},
    }
    return Variant(f"{attention}-seed{seed}", training, train, settings)


def merge_seeds(rows: Rows) -> dict[str, dict[str, Any]]:
    """A row for each attention, of the runs with all seeds."""
    runs = rows.values()
    return {
        name: merge([x for x in runs if x["attention"] == name]) for name in get_args(Attention)
    }


def merge(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What the runs of one attention share, and their losses."""
    return {
        "parameters": summaries[0]["parameters"],
        "steps": summaries[0]["steps"],
        "losses": [each["metrics"]["loss"] for each in summaries],
    }


def columns(seeds: Sequence[int]) -> dict[str, Any]:
    """The columns of the table: the loss of each seed, and their mean."""
    each = {
        f"seed {seed}": (lambda row, i=i: decimals(row["losses"][i], 3))
        for i, seed in enumerate(seeds)
    }
    return {
        "parameters": lambda row: f"{row['parameters']:,}",
        "updates": lambda row: f"{row['steps']:,}",
        **each,
        "held out: nats per byte": lambda row: decimals(mean(row["losses"]), 3),
    }


def mean(losses: Sequence[float | None]) -> float | None:
    """That of the losses; None if one of them was not finite."""
    finite = [loss for loss in losses if loss is not None]
    return sum(finite) / len(finite) if len(finite) == len(losses) else None


if __name__ == "__main__":
    run_script(main)
