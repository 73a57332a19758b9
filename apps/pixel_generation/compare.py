"""What each attention learns from an equal number of updates, and in an equal time.

    python apps/pixel_generation/compare.py
    python apps/pixel_generation/compare.py --dataset mnist --download --steps 400
    python apps/pixel_generation/compare.py --dataset mnist --only-time --seconds 3600

First a few updates of each attention are timed, in turn. Then each is trained for --steps updates,
from the same seed and on the same images in the same order; and once more, with a schedule of its
own, for as many updates as fit into the time that linear attention takes for --steps.

Into --out go table.md, curves.png, figures.json, timings.json, and the runs in updates/ATTENTION
and time/ATTENTION (where equal time comes to --steps updates, there is the first run only); with
--seeds also in ATTENTION-seedN. Given again after an interruption, the same command continues, with
the times it measured.

With --only-time each is trained once, for the updates that fit into --seconds. The learning rate is
constant until the last fifth of a run, so until then no run depends on its own length: bits/dim
after equal updates are read from the curves, of the validation images.
"""

from __future__ import annotations

if __name__ == "__main__":
    import pixels  # noqa: F401, I001 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro
from torch import nn

from linattn_core.errors import expected
from linattn_lab.compare import (
    TIMES,
    Budget,
    Columns,
    Curve,
    Display,
    Rows,
    compare,
    name_trainings,
)
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, require_one_process, run_script
from linattn_lab.seeds import read_figures, repeat, with_noise
from linattn_lab.tables import decimals, describe_environment, figure
from linattn_lab.trainings import Summary, Trainings, Variant, with_steps
from linattn_lab.updates import UpdateTimes, measure_updates, read_times
from linattn_models.training import TrainingFlags
from pixels.datasets import DatasetName, FolderSettings, Images, load
from pixels.models import APP, build_model
from pixels.presets import PRESETS, Attention, Recipe
from pixels.tokens import TokenData
from pixels.training import describe_run, mean_nats, tested_summary, train_model

METRIC = "bits_per_dim"
CURVES = (
    Curve("updates", METRIC),
    Curve("seconds of updates, equally long for each", METRIC, over="pace"),
)
COLUMNS: Columns = {
    "bits/dim, equal updates": lambda row: show_bits(row),
    "updates": lambda row: f"{row['steps']:,}",
    "bits/dim, equal time": lambda row: show_bits(row["equal_time"]),
    "updates in it": lambda row: f"{row['equal_time']['steps']:,}",
    "s per update": lambda row: figure(row["seconds_per_update"]),
    "parameters": lambda row: f"{row['parameters']:,}",
}
FROM_CURVES = (
    "Equal updates: read from the curves of the validation images, at the last evaluation that "
    "all runs have before their learning rates differ."
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Train every attention within the same budget of updates and of time, and compare."""

    preset: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: minutes per run on two cores; paper: the paper's own numbers."""
    dataset: DatasetName = "digits"
    """digits comes with scikit-learn; folder are your own pictures in --data-dir; the others are
    read from there or downloaded."""
    data_dir: Path | None = None
    """Folder of your own pictures, or of the dataset's published files, or with a subfolder of its
    name that has them."""
    settings: Annotated[FolderSettings, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=FolderSettings
    )
    download: bool = False
    """Download the dataset first, where it is not there yet."""
    attentions: tuple[Attention, ...] = get_args(Attention)
    """What is compared."""
    steps: int | None = None
    """Updates of each where updates are equal; the preset's if not given."""
    seconds: float | None = None
    """The equal time; what linear attention takes for --steps if not given."""
    only_time: bool = False
    """Train each once, for --seconds, and read equal updates from the curves."""
    rounds: int = 7
    """Rounds in which the updates of each attention are timed."""
    seed: int = 0
    """Decides the weights at the start, the order of the images, and dropout."""
    seeds: int = 1
    """Trainings of each attention, with the seeds --seed, --seed + 1, ..."""
    out: Path | None = None
    """Folder for all of it; runs/pixel_generation/attentions-DATASET-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/attentions."""

    def folder(self) -> Path:
        """Where everything goes."""
        name = f"attentions-{self.dataset}-{self.preset}"
        return self.out if self.out is not None else Path("runs", APP, name)

    def recipe(self) -> Recipe:
        """Of every run, apart from its attention."""
        recipe = PRESETS[self.preset](self.dataset)
        steps = recipe.training.steps if self.steps is None else self.steps
        training = dataclasses.replace(with_steps(recipe.training, steps), seed=self.seed)
        return dataclasses.replace(recipe, training=training)


def main(flags: Flags) -> None:
    """Times, trains, draws, and prints the table."""
    require_one_process()
    check(flags)
    images = load(flags.dataset, flags.data_dir, download=flags.download, settings=flags.settings)
    out = flags.folder()
    make_folders(out, flags.publish)
    recipes = {x: dataclasses.replace(flags.recipe(), attention=x) for x in flags.attentions}
    times = measure_once(out / TIMES, images, recipes, flags.rounds)
    trainings = Trainings(
        out,
        repeat([variant(images, recipe) for recipe in recipes.values()], flags.seeds),
        # A run killed between its last update and its test has a summary, too, without this metric.
        complete=lambda summary: "validation_bits_per_dim" in summary["metrics"],
    )
    budget = plan_budget(flags, times)
    display = Display(
        COLUMNS,
        CURVES,
        read_bits,
        ylabel="bits/dim, validation images",
        summarize=tested_summary,
        notes=lambda rows: "\n".join(notes(flags, rows, budget)),
        judged={
            "bits": "Bits/dim after equal updates",
            "bits-equal-time": "Bits/dim in equal time",
        },
    )
    print(compare(trainings, display, budget=budget, publish_to=flags.publish))


def measure_once(
    file: Path, images: Images, recipes: dict[Attention, Recipe], rounds: int
) -> UpdateTimes:
    """What an update of each attention takes, as timings.json has it."""
    recipe = next(iter(recipes.values()))

    def measure() -> dict[str, Any]:
        models: dict[str, nn.Module] = {x: build_model(y, images) for x, y in recipes.items()}
        data = TokenData(images.train, recipe.layout)
        return measure_updates(models, data, mean_nats, recipe.training, rounds)

    return read_times(file, {"dataset": recipe.dataset, "preset": recipe.preset}, recipes, measure)


def variant(images: Images, recipe: Recipe) -> Variant:
    """The training of one attention."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        trained = dataclasses.replace(recipe, training=training)
        return train_model(images, trained, out, resume=resume)

    return Variant(recipe.attention, recipe.training, train, describe_run(images, recipe))


def plan_budget(flags: Flags, times: UpdateTimes) -> Budget:
    """The time of each run: --seconds, or what linear attention takes for --steps."""
    training, seconds = flags.recipe().training, flags.seconds
    return Budget(
        times,
        training.steps * times.seconds["linear"] if seconds is None else seconds,
        way="curves" if flags.only_time else "twice",
        training=training,
        quantity=METRIC,
    )


def check(flags: Flags) -> None:
    """Refuses numbers out of range and names that do not fit together."""
    require_at_least(flags, {"steps": 1, "rounds": 1, "seed": 0, "seeds": 1})
    if flags.only_time and (flags.seconds is None or flags.steps is not None):
        got = "--steps" if flags.steps is not None else "none"
        raise ValueError(expected("--only-time", "--seconds, which decides the updates", got))
    named = " ".join(flags.attentions) or "none"
    if not flags.attentions or len(set(flags.attentions)) < len(flags.attentions):
        raise ValueError(expected("--attentions", "one name or more, each once", named))
    if flags.seconds is None and "linear" not in flags.attentions:
        wanted = "linear, whose time is the budget of all"
        raise ValueError(expected("--attentions", wanted, named, "or give a budget in --seconds"))
    if flags.seconds is not None and not 0 < flags.seconds < math.inf:
        raise ValueError(expected("--seconds", "more than 0", flags.seconds))


def show_bits(row: Summary) -> str:
    """Bits/dim of the test images, or of the validation images where only those are known."""
    return with_noise(row, name_metric(row), lambda bits: decimals(bits, 3))


def name_metric(row: Summary) -> str:
    """The bits/dim of the test images, or of the validation images where only those are known."""
    return next(x for x in (METRIC, f"validation_{METRIC}") if x in row["metrics"])


def read_bits(rows: Rows) -> dict[str, float | None]:
    """Bits per dimension of the attentions after equal updates, and in equal time."""
    figures: dict[str, float | None] = {f"{name}/updates": x["steps"] for name, x in rows.items()}
    in_time = {name: row["equal_time"] for name, row in rows.items()}
    for name, each in (("bits", rows), ("bits-equal-time", in_time)):
        figures |= read_figures(each, name_metric(next(iter(each.values()))), name)
    return figures


def notes(flags: Flags, rows: Rows, budget: Budget) -> list[str]:
    """What the columns mean."""
    row, times = next(iter(rows.values())), budget.times
    metrics, equal = row["equal_time"]["metrics"], f"Equal time is {figure(budget.seconds)} s"
    linear = f", what linear attention takes for {flags.recipe().training.steps:,}"
    last = flags.seed + flags.seeds - 1
    seeds = f"seeds {flags.seed} to {last}" if flags.seeds > 1 else f"seed {flags.seed}"
    lines = [
        f"{flags.dataset}, preset {flags.preset}, {seeds}; "
        f"{metrics['test_images']:,} test images, of which independent pixels cost "
        f"{metrics['independent_pixels_bits_per_dim']:.3f} bits/dim.",
        f"{equal} of updates{linear if flags.seconds is None else ''}.",
        f"Seconds per update: the median of {times.rounds} rounds in which the attentions took "
        f"turns; {describe_environment(times.environment)}.",
    ]
    in_time = {f"{name} in equal time": row["equal_time"] for name, row in rows.items()}
    lines.append(name_trainings({**rows, **in_time}))
    return [*lines, FROM_CURVES] if flags.only_time else lines


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
