"""Every attention within equal updates and within equal time: runs, results, the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from linattn_lab.tables import decimals, describe_environment, figure, table_of
from linattn_lab.updates import measure_updates
from linattn_models.training import RunFolder, TrainingFlags
from pixels.datasets import Images
from pixels.models import build_model
from pixels.paper import PAPER
from pixels.presets import Attention, Recipe
from pixels.tokens import TokenData
from pixels.training import describe_run, mean_nats, train_model

FILES = ("table.md", "curves.png", "results.json", "timings.json")
METRIC, YLABEL = "bits_per_dim", "bits/dim, validation images"
FROM_CURVES = (
    "Equal updates: read from the curves of the validation images, at the last evaluation that "
    "all runs have before their learning rates differ."
)

Results = Mapping[str, Any]
"""The content of results.json, or of a part of it."""


def bits(summary: Results) -> str:
    """Bits/dim of the test images, or of the validation images where only those are known."""
    metrics = summary["metrics"]
    return decimals(metrics.get(METRIC, metrics["validation_bits_per_dim"]), 3)


COLUMNS: dict[str, Callable[[Results], str]] = {
    "bits/dim, equal updates": lambda x: bits(x["equal_updates"]),
    "updates": lambda x: f"{x['equal_updates']['steps']:,}",
    "bits/dim, equal time": lambda x: bits(x["equal_time"]),
    "updates in it": lambda x: f"{x['equal_time']['steps']:,}",
    "s per update": lambda x: figure(x["seconds_an_update"]),
    "parameters": lambda x: f"{x['equal_time']['parameters']:,}",
}


def read_update_times(
    file: Path, images: Images, recipe: Recipe, attentions: Sequence[Attention], rounds: int
) -> UpdateTimes:
    """What an update of each attention takes, as timings.json has it."""

    def measure() -> dict[str, Any]:
        recipes = {name: replace(recipe, attention=name) for name in attentions}
        models: dict[str, nn.Module] = {x: build_model(y, images) for x, y in recipes.items()}
        data = TokenData(images.train, recipe.layout)
        return measure_updates(models, data, mean_nats, recipe.training, rounds)

    about = {"dataset": recipe.dataset, "preset": recipe.preset}
    return read_times(file, about, attentions, measure)


def build_comparison(
    images: Images, recipe: Recipe, attentions: Sequence[Attention], out: Path
) -> Comparison:
    """The recipe with each attention."""
    variants = [_variant(images, replace(recipe, attention=name)) for name in attentions]
    # A run killed between its last update and its test has a summary, too, without this metric.
    return Comparison(out, variants, lambda of: "validation_bits_per_dim" in of["metrics"])


def _variant(images: Images, recipe: Recipe) -> Variant:
    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        return train_model(images, replace(recipe, training=training), out, resume=resume)

    return Variant(recipe.attention, recipe.training, train, describe_run(images, recipe))


def train_twice(comparison: Comparison, timed: Comparison) -> tuple[Runs, Runs]:
    """The runs with equal updates and those in equal time; where these agree, the same run."""
    updates = comparison.equal_updates("updates")
    pairs = zip(comparison.variants, timed.variants, strict=True)
    time = {
        x.name: updates[x.name] if x.flags.steps == y.flags.steps else timed.run(y, "time")
        for x, y in pairs
    }
    return updates, time


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
    """The most updates at which all runs were evaluated, all with the same rates until then."""
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


def read_curve_point(run: RunFolder, updates: int) -> dict[str, Any]:
    """What a run's curve says after so many updates, in the place of a summary."""
    value = dict(points(run.metrics(), METRIC, split="eval"))[updates]
    return {"steps": updates, "metrics": {"validation_bits_per_dim": value}}


def draw_curves(path: Path, updates: Runs, time: Runs, seconds: Mapping[str, float]) -> None:
    """A PNG: the runs of equal updates over updates, those in equal time over seconds.

    Args:
        seconds: the measured pace, of an update.
    """
    label = "updates" if updates is time else "updates, equally many of each"
    panels = [
        Panel(label, curves(updates, METRIC)),
        Panel("seconds of updates, equally long for each", curves(time, METRIC, pace=seconds)),
    ]
    plot_panels(path, panels, ylabel=YLABEL)


def comparison_report(results: Results) -> str:
    """The content of table.md: a row for each attention, and what the columns mean."""
    paper = {row.method: row.bits_per_dim for row in PAPER.get(results["dataset"], ())}
    rows = {name: {**x, "paper": paper.get(name)} for name, x in results["attentions"].items()}
    columns = dict(COLUMNS)
    if paper:
        columns["the paper's bits/dim"] = lambda x: f"{x['paper']:g}"
    return "\n".join([table_of(rows, columns, first="attention"), *_notes(results)]) + "\n"


def _notes(results: Results) -> list[str]:
    first = next(iter(results["attentions"].values()))
    metrics = first["equal_time"]["metrics"]
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
    if METRIC not in first["equal_updates"]["metrics"]:
        notes.append(FROM_CURVES)
    return notes
