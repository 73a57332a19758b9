"""Every attention within equal updates and within equal time: runs, results, the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from linattn_core.errors import expected
from linattn_lab.compare import (
    Comparison,
    Runs,
    UpdateTimes,
    Variant,
    curves,
    read_times,
    with_steps,
)
from linattn_lab.plots import Panel, plot_panels, points
from linattn_lab.tables import describe_environment, figure, table_of
from linattn_lab.updates import measure_updates
from linattn_models.training import RunFolder, TrainingFlags
from pixels.datasets import Images
from pixels.models import APP, build_model
from pixels.paper import PAPER
from pixels.presets import Attention, Recipe
from pixels.tokens import TokenData
from pixels.training import mean_nats, tested_summary, train_model

FILES = ("table.md", "curves.png", "results.json", "timings.json")
METRIC, YLABEL = "bits_per_dim", "bits/dim, validation images"
FROM_CURVES = (
    "Equal updates: read from the curves of the validation images, at the last evaluation that "
    "all runs have before their learning rates differ."
)

Result = Mapping[str, Any]


def bits(summary: Result) -> str:
    """Bits/dim of the test images, or of the validation images where only those are known."""
    metrics = summary["metrics"]
    return f"{metrics.get(METRIC, metrics['validation_bits_per_dim']):.3f}"


COLUMNS: dict[str, Callable[[Result], str]] = {
    "bits/dim, equal updates": lambda x: bits(x["equal_updates"]),
    "updates": lambda x: f"{x['equal_updates']['steps']:,}",
    "bits/dim, equal time": lambda x: bits(x["equal_time"]),
    "updates in it": lambda x: f"{x['equal_time']['steps']:,}",
    "s per update": lambda x: figure(x["seconds_an_update"]),
    "parameters": lambda x: f"{x['equal_time']['parameters']:,}",
}


@dataclass(frozen=True)
class Compared:
    """All runs, which have ended, and their budgets.

    Attributes:
        recipe: of the runs with equal updates, apart from their attention.
        seconds: the budget of time.
        of_linear: whether that is the time of linear attention's updates.
        times: what an update takes.
        equal_updates, equal_time: the runs by attention; where the budgets agree, the same run.
        shared: the updates at which the curves of the runs in equal time are compared; None where
            there are runs with equal updates.
    """

    recipe: Recipe
    seconds: float
    of_linear: bool
    times: UpdateTimes
    equal_updates: Runs
    equal_time: Runs
    shared: int | None = None

    def results(self) -> dict[str, Any]:
        """The content of results.json."""
        training = self.recipe.training
        return {
            "app": APP,
            "dataset": self.recipe.dataset,
            "preset": self.recipe.preset,
            "seed": training.seed,
            "steps": training.steps if self.shared is None else self.shared,
            "budget_seconds": self.seconds,
            "budget_of_linear": self.of_linear,
            "timing": {"rounds": self.times.rounds, "environment": self.times.environment},
            "attentions": {
                name: {
                    "seconds_an_update": self.times.seconds[name],
                    "equal_updates": self._after_equal_updates(run),
                    "equal_time": tested_summary(self.equal_time[name]),
                }
                for name, run in self.equal_updates.items()
            },
        }

    def _after_equal_updates(self, run: RunFolder) -> dict[str, Any]:
        """The run's summary; with --only-time, the point of its curve after the shared updates."""
        if self.shared is None:
            return tested_summary(run)
        value = dict(points(run.metrics(), METRIC, split="eval"))[self.shared]
        return {"steps": self.shared, "metrics": {"validation_bits_per_dim": value}}

    def draw(self, path: Path) -> None:
        """A PNG: the runs of equal updates over updates, those in equal time over seconds.

        Seconds are at the measured pace.
        """
        label = "updates" if self.shared else "updates, equally many of each"
        over_time = curves(self.equal_time, METRIC, pace=self.times.seconds)
        panels = [
            Panel(label, curves(self.equal_updates, METRIC)),
            Panel("seconds of updates, equally long for each", over_time),
        ]
        plot_panels(path, panels, ylabel=YLABEL)

    def report(self) -> str:
        """The content of table.md: a row for each attention, and what the columns mean."""
        results = self.results()
        paper = {row.method: row.bits_per_dim for row in PAPER.get(self.recipe.dataset, ())}
        rows = {name: {**x, "paper": paper.get(name)} for name, x in results["attentions"].items()}
        columns = dict(COLUMNS)
        if paper:
            columns["the paper's bits/dim"] = lambda x: f"{x['paper']:g}"
        notes = [*_notes(results), *([FROM_CURVES] if self.shared else [])]
        return "\n".join([table_of(rows, columns, first="attention"), *notes]) + "\n"


def _notes(results: Result) -> list[str]:
    metrics = next(iter(results["attentions"].values()))["equal_time"]["metrics"]
    budget = f"Equal time is {figure(results['budget_seconds'])} s of updates"
    if results["budget_of_linear"]:
        budget += f", what linear attention takes for {results['steps']:,}"
    notes = [
        f"{results['dataset']}, preset {results['preset']}, seed {results['seed']}; "
        f"{metrics['test_images']:,} test images, of which independent pixels cost "
        f"{metrics['independent_pixels_bits_per_dim']:.3f} bits/dim.",
        f"{budget}.",
        f"Seconds per update: the median of {results['timing']['rounds']} rounds in which the "
        f"attentions took turns; {describe_environment(results['timing']['environment'])}.",
    ]
    if results["dataset"] in PAPER and results["preset"] != "paper":
        notes.append("The paper's numbers are of larger models, trained for far longer.")
    return notes


def compare_attentions(
    images: Images,
    recipe: Recipe,
    attentions: Sequence[Attention],
    out: Path,
    *,
    rounds: int,
    seconds: float | None = None,
    only_time: bool = False,
) -> Compared:
    """Times the updates, then makes every run in `out` that has not ended: equal updates first.

    Args:
        recipe: of every run, apart from the attention; its steps are the budget of updates.
        rounds: turns of each attention while updates are timed.
        seconds: the budget of time; what linear attention takes for those steps if None.
        only_time: train only the runs in equal time, with one learning rate until the shortest run
            cools down.

    Raises:
        ValueError: `out` holds other times or runs.
    """
    steps = recipe.training.steps
    recipes = [replace(recipe, attention=name) for name in attentions]
    times = read_times(
        out / "timings.json",
        {"dataset": recipe.dataset, "preset": recipe.preset},
        attentions,
        lambda: time_updates(images, recipes, rounds),
    )
    budget = seconds if seconds is not None else steps * times.seconds["linear"]
    # A run killed between its last update and its test has a summary, too, without this metric.
    comparison = Comparison(
        out,
        [variant(images, each) for each in recipes],
        complete=lambda summary: "validation_bits_per_dim" in summary["metrics"],
    )
    timed = comparison.within(budget, times.seconds)
    if only_time:
        runs = share_schedule(timed, recipe.training).equal_updates("time")
        return Compared(recipe, budget, False, times, runs, runs, shared_updates(runs))
    updates = comparison.equal_updates("updates")
    time = {
        each.name: updates[each.name] if each.flags.steps == steps else timed.run(each, "time")
        for each in timed.variants
    }
    return Compared(recipe, budget, seconds is None, times, updates, time)


def time_updates(images: Images, recipes: Sequence[Recipe], rounds: int) -> dict[str, Any]:
    """What an update of each attention takes, as timings.json has it."""
    models: dict[str, nn.Module] = {x.attention: build_model(x, images) for x in recipes}
    data = TokenData(images.train, recipes[0].layout)
    return measure_updates(models, data, mean_nats, recipes[0].training, rounds)


def variant(images: Images, recipe: Recipe) -> Variant:
    """The training of one attention."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        return train_model(images, replace(recipe, training=training), out, resume=resume)

    settings = {name: getattr(recipe, name) for name in ("preset", "dataset", "attention")}
    return Variant(recipe.attention, recipe.training, train, settings)


def share_schedule(timed: Comparison, training: TrainingFlags) -> Comparison:
    """The same updates, by flags with which all curves are of the same training at first.

    They are evaluated after the same updates, with the same rates until the shortest one cools
    down: a cosine, which falls from the first update on, becomes a trapezoid.
    """
    evaluated = with_steps(training, min(each.flags.steps for each in timed.variants))
    schedule = "trapezoid" if training.schedule == "cosine" else training.schedule
    shared = replace(evaluated, schedule=schedule, warmup_steps=evaluated.config().warmup)
    variants = [
        replace(each, flags=replace(shared, steps=each.flags.steps)) for each in timed.variants
    ]
    return replace(timed, variants=variants)


def shared_updates(runs: Runs) -> int:
    """The most updates at which all runs were evaluated, all with the same rates until then.

    Raises:
        ValueError: there are none.
    """
    rates = [dict(x) for x in curves(runs, "learning_rate", split="train").values()]
    logged = sorted(set(rates[0]).intersection(*rates))
    same = itertools.takewhile(lambda step: len({x[step] for x in rates}) == 1, logged)
    last = max(same, default=0)
    evaluated = [dict(x).keys() for x in curves(runs, METRIC).values()]
    equal = [step for step in set(evaluated[0]).intersection(*evaluated) if step <= last]
    if not equal:
        wanted = "an evaluation of all before their learning rates differ"
        raise ValueError(expected("--only-time", wanted, "none", "give more --seconds"))
    return int(max(equal))
