"""What each attention learns from an equal number of updates, and in an equal time.

    python apps/pixel_generation/compare.py
    python apps/pixel_generation/compare.py --dataset mnist --download --steps 400
    python apps/pixel_generation/compare.py --dataset mnist --only-time --seconds 3600
    python apps/pixel_generation/compare.py --runs RUN RUN --out runs/compared

First a few updates of each attention are timed, in turn. Then each is trained for --steps updates,
from the same seed and on the same images in the same order; and once more, with a schedule of its
own, for as many updates as fit into the time that linear attention takes for --steps.

Into --out go table.md, curves.png, results.json, timings.json, and the runs in updates/ATTENTION
and time/ATTENTION (where equal time comes to --steps updates, there is the first run only). Given
again after an interruption, the same command continues, with the times it measured.

With --only-time each is trained once, for the updates that fit into --seconds. The learning rate is
constant until the last fifth of a run, so until then no run depends on its own length: bits/dim
after equal updates are read from the curves, of the validation images.

With --runs nothing is trained: table.md and curves.png compare those finished runs, and their
records (config.json, metrics.jsonl, summary.json, no weights) are copied beside.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from linattn_core.errors import expected
from linattn_lab.compare import Summary, curves, with_steps
from linattn_lab.plots import Panel, plot_panels
from linattn_lab.runs import copy_records, make_folders, publish
from linattn_lab.script import parse_flags, require_at_least, require_one_process, run_script
from linattn_lab.tables import table_of
from linattn_models.files import replace_file
from linattn_models.training import RunFolder, write_json
from pixels.comparison import (
    FILES,
    METRIC,
    YLABEL,
    bits,
    build_comparison,
    comparison_report,
    draw_curves,
    read_curve_point,
    read_update_times,
    share_schedule,
    shared_updates,
    train_twice,
)
from pixels.datasets import DatasetName, load
from pixels.models import APP
from pixels.presets import PRESETS, Attention, Recipe
from pixels.training import tested_summary

RUN_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "attention": lambda run: str(run["attention"]),
    "updates": lambda run: f"{run['steps']:,}",
    "parameters": lambda run: f"{run['parameters']:,}",
    "s of training": lambda run: f"{run['train_seconds']:,.0f}",
    "bits/dim, test": bits,
    "validation": lambda run: f"{run['metrics']['validation_bits_per_dim']:.3f}",
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """Train every attention within the same budget of updates and of time, and compare."""

    runs: tuple[Path, ...] = ()
    """Folders of finished runs of train.py to compare, in place of training."""
    preset: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: minutes per run on two cores; paper: the paper's own numbers."""
    dataset: DatasetName = "digits"
    """digits comes with scikit-learn; the others are read from --data-dir or downloaded."""
    data_dir: Path | None = None
    """Folder of the dataset's published files, or with a subfolder of its name that has them."""
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
    out: Path | None = None
    """Folder for all of it; runs/pixel_generation/attentions-DATASET-PRESET if not given, or
    runs/pixel_generation/comparison with --runs."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/attentions."""

    def folder(self) -> Path:
        """Where everything goes."""
        name = "comparison" if self.runs else f"attentions-{self.dataset}-{self.preset}"
        return self.out if self.out is not None else Path("runs", APP, name)

    def recipe(self) -> Recipe:
        """Of every run, apart from its attention."""
        recipe = PRESETS[self.preset](self.dataset)
        steps = recipe.training.steps if self.steps is None else self.steps
        training = dataclasses.replace(with_steps(recipe.training, steps), seed=self.seed)
        return dataclasses.replace(recipe, training=training)


def main(flags: Flags) -> None:
    """Prints the table of the comparison that the flags ask for."""
    require_one_process()
    text = compare_runs(flags) if flags.runs else train_attentions(flags)
    print(f"\n{text}\nTable, picture and runs are in {flags.folder()}.")


def train_attentions(flags: Flags) -> str:
    """Times, trains, draws; returns the table."""
    check(flags)
    images, out = load(flags.dataset, flags.data_dir, download=flags.download), flags.folder()
    make_folders(out, flags.publish)
    recipe, names = flags.recipe(), flags.attentions
    times = read_update_times(out / "timings.json", images, recipe, names, flags.rounds)
    steps = recipe.training.steps
    budget = steps * times.seconds["linear"] if flags.seconds is None else flags.seconds
    comparison = build_comparison(images, recipe, names, out)
    timed = comparison.within(budget, times.seconds)
    if flags.only_time:
        updates = time = share_schedule(timed, recipe.training).equal_updates("time")
        steps = shared_updates(time)
        after = {name: read_curve_point(run, steps) for name, run in updates.items()}
    else:
        updates, time = train_twice(comparison, timed)
        after = {name: tested_summary(run) for name, run in updates.items()}
    results = {
        "app": APP,
        "dataset": recipe.dataset,
        "preset": recipe.preset,
        "seed": recipe.training.seed,
        "steps": steps,
        "budget_seconds": budget,
        "budget_of_linear": flags.seconds is None,
        "timing": {"rounds": times.rounds, "environment": times.environment},
        "attentions": {
            name: {
                "seconds_an_update": times.seconds[name],
                "equal_updates": after[name],
                "equal_time": tested_summary(time[name]),
            }
            for name in names
        },
    }
    text = comparison_report(results)
    draw_curves(out / "curves.png", updates, time, times.seconds)
    write_json(out / "results.json", results)
    replace_file(out / "table.md", text.encode())
    if flags.publish is not None:
        publish(out, flags.publish, FILES, (*updates.values(), *time.values()))
    return text


def check(flags: Flags) -> None:
    """Refuses numbers out of range and names that do not fit together."""
    require_at_least(flags, {"steps": 1, "rounds": 1, "seed": 0})
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


def compare_runs(flags: Flags) -> str:
    """Draws the finished runs and copies their records; returns the table."""
    for field in dataclasses.fields(Flags):
        value = getattr(flags, field.name)
        if field.name not in ("runs", "out", "publish") and value != field.default:
            name = f"--{field.name.replace('_', '-')}"
            raise ValueError(expected(name, "none beside --runs, which trains nothing", value))
    runs = {folder.resolve().name: RunFolder(folder) for folder in flags.runs}
    if len(runs) < len(flags.runs):
        raise ValueError(expected("--runs", "folders of different names", "one name twice"))
    summaries = {name: tested_summary(run) for name, run in runs.items()}
    datasets = sorted({summary["dataset"] for summary in summaries.values()})
    if len(datasets) > 1:
        raise ValueError(expected("--runs", "runs on one dataset", ", ".join(datasets)))
    alone = next(iter(summaries.values()))["metrics"]["independent_pixels_bits_per_dim"]
    text = table_of(summaries, RUN_COLUMNS, first="run")
    text += f"\nIndependent pixels cost {alone:.3f} bits/dim.\n"
    axes = {"step": "updates of training", "seconds": "seconds of training"}
    panels = [Panel(label, curves(runs, METRIC, over=over)) for over, label in axes.items()]
    out = flags.folder()
    make_folders(out, flags.publish)
    plot_panels(out / "curves.png", panels, ylabel=YLABEL)
    replace_file(out / "table.md", text.encode())
    copies = [RunFolder(out / name) for name in runs]
    for run, copy in zip(runs.values(), copies, strict=True):
        copy_records(run, copy.path)
    if flags.publish is not None:
        publish(out, flags.publish, ("curves.png", "table.md"), copies)
    return text


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
