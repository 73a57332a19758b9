"""Runs side by side: every attention within equal updates and equal time, or any finished runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from linattn_core.errors import expected
from linattn_lab.plots import Panel, Points, plot_panels, points
from linattn_models.training import (
    RunFolder,
    TrainingFlags,
    measure_updates,
    publish,
    recorded_times,
    run_summary,
    trained_run,
    updates_within,
    with_steps,
)
from pixels.datasets import Images
from pixels.models import APP, build_model
from pixels.presets import Attention, Recipe
from pixels.tables import attention_report
from pixels.tokens import TokenData
from pixels.training import mean_nats, train_model

FILES = ("table.md", "curves.png", "results.json", "timings.json")
YLABEL = "bits/dim, validation images"
FROM_CURVES = (
    "Equal updates: read from the curves of the validation images, at the last evaluation that "
    "all runs have before their learning rates differ.\n"
)


@dataclass(frozen=True)
class Comparison:
    """All runs, which have ended, and their budgets.

    Attributes:
        recipe: of the runs with equal updates, apart from their attention.
        seconds: the budget of time.
        of_linear: whether that is the time of linear attention's updates.
        timing: the content of timings.json.
        equal_updates, equal_time: the runs by attention; where the budgets agree, the same run.
        shared: the updates at which the curves of the runs in equal time are compared; None where
            there are runs with equal updates.
    """

    recipe: Recipe
    seconds: float
    of_linear: bool
    timing: Mapping[str, Any]
    equal_updates: Mapping[Attention, RunFolder]
    equal_time: Mapping[Attention, RunFolder]
    shared: int | None = None

    def results(self) -> dict[str, Any]:
        """The content of results.json."""
        return {
            "app": APP,
            "dataset": self.recipe.dataset,
            "preset": self.recipe.preset,
            "seed": self.recipe.training.seed,
            "steps": self.recipe.training.steps if self.shared is None else self.shared,
            "budget_seconds": self.seconds,
            "budget_of_linear": self.of_linear,
            "timing": {name: self.timing[name] for name in ("rounds", "environment")},
            "attentions": {
                name: {
                    "seconds_an_update": self.timing["seconds"][name],
                    "equal_updates": self._after_equal_updates(run),
                    "equal_time": run_summary(self.equal_time[name], APP),
                }
                for name, run in self.equal_updates.items()
            },
        }

    def report(self) -> str:
        """The content of table.md."""
        results = self.results()
        if self.shared is None:
            return attention_report(results)
        for result in results["attentions"].values():
            bits = result["equal_updates"]["metrics"]["validation_bits_per_dim"]
            metrics = {**result["equal_time"]["metrics"], "bits_per_dim": bits}
            updates = {"steps": self.shared, "metrics": metrics}
            result["equal_updates"] = {**result["equal_time"], **updates}
        return attention_report(results) + FROM_CURVES

    def _after_equal_updates(self, run: RunFolder) -> dict[str, Any]:
        """The run's summary; with --only-time, the point of its curve after the shared updates."""
        if self.shared is None:
            return run_summary(run, APP)
        bits = dict(curve(run))[self.shared]
        return {"steps": self.shared, "metrics": {"validation_bits_per_dim": bits}}

    def draw(self, path: Path) -> None:
        """A PNG: the runs of equal updates over updates, those in equal time over seconds.

        Seconds are at the measured pace.
        """
        pace, timed = self.timing["seconds"], self.equal_time.items()
        label = "updates" if self.shared else "updates, equally many of each"
        over_updates = Panel(label, {name: curve(run) for name, run in self.equal_updates.items()})
        over_seconds = Panel(
            "seconds of updates, equally long for each",
            {name: curve(run, scale=pace[name]) for name, run in timed},
        )
        plot_panels(path, [over_updates, over_seconds], ylabel=YLABEL)

    def publish(self, out: Path, folder: Path) -> None:
        """Copies what was written into `out` to `folder`, and of the runs there their records."""
        publish(out, folder, FILES, (*self.equal_updates.values(), *self.equal_time.values()))


def curve(run: RunFolder, over: str = "step", scale: float = 1.0) -> Points:
    """Bits per dimension of the validation images, over `scale` times "step" or "seconds"."""
    return points(run.metrics(), "bits_per_dim", split="eval", over=over, scale=scale)


def compare_attentions(
    images: Images,
    recipe: Recipe,
    attentions: Sequence[Attention],
    out: Path,
    *,
    rounds: int,
    seconds: float | None = None,
    only_time: bool = False,
) -> Comparison:
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
    recipes = {name: replace(recipe, attention=name) for name in attentions}
    timing = update_times(out / "timings.json", images, recipes, rounds)
    budget = seconds if seconds is not None else steps * timing["seconds"]["linear"]
    affordable = {name: updates_within(budget, timing["seconds"][name]) for name in recipes}
    equal_time = {}
    if only_time:
        flags = comparable(recipe.training, min(affordable.values()))
        for name, own in recipes.items():
            training = replace(flags, steps=affordable[name])
            equal_time[name] = _ended(images, replace(own, training=training), out / "time")
        shared = shared_updates(list(equal_time.values()))
        return Comparison(recipe, budget, False, timing, equal_time, equal_time, shared)
    equal_updates = {name: _ended(images, own, out / "updates") for name, own in recipes.items()}
    for name, own in recipes.items():
        shorter = replace(own, training=with_steps(own.training, affordable[name]))
        same = affordable[name] == steps
        equal_time[name] = equal_updates[name] if same else _ended(images, shorter, out / "time")
    return Comparison(recipe, budget, seconds is None, timing, equal_updates, equal_time)


def comparable(flags: TrainingFlags, fewest: int) -> TrainingFlags:
    """Flags for runs of `fewest` updates or more, whose curves are then of the same training.

    They are evaluated after the same updates, with the same rates until the shortest one cools
    down: a cosine, which falls from the first update on, becomes a trapezoid.
    """
    evaluated = with_steps(flags, fewest)
    schedule = "trapezoid" if flags.schedule == "cosine" else flags.schedule
    return replace(evaluated, schedule=schedule, warmup_steps=evaluated.config().warmup)


def shared_updates(runs: Sequence[RunFolder]) -> int:
    """The most updates at which all runs were evaluated, all with the same rates until then.

    Raises:
        ValueError: there are none.
    """
    rates = [dict(points(run.metrics(), "learning_rate", split="train")) for run in runs]
    logged = sorted(set(rates[0]).intersection(*rates))
    alike = itertools.takewhile(lambda step: len({x[step] for x in rates}) == 1, logged)
    last = max(alike, default=0)
    evaluated = [{step for step, _ in curve(run)} for run in runs]
    equal = [step for step in evaluated[0].intersection(*evaluated) if step <= last]
    if not equal:
        wanted = "an evaluation of all before their learning rates differ"
        raise ValueError(expected("--only-time", wanted, "none", "give more --seconds"))
    return int(max(equal))


def _ended(images: Images, recipe: Recipe, folder: Path) -> RunFolder:
    """The run in folder/ATTENTION: made, resumed, or left as it is if it had ended before."""
    out, training = folder / recipe.attention, recipe.training
    print(f"\n{recipe.attention} attention, {training.steps:,} updates, in {out}", flush=True)
    settings = {name: getattr(recipe, name) for name in ("preset", "dataset", "attention")}
    return trained_run(
        out,
        lambda resume: train_model(images, recipe, out, resume=resume),
        {
            **settings,
            "training.seed": training.seed,
            "training.steps": training.steps,
            "training.schedule": training.schedule,  # --only-time has its own
        },
        # A run killed between its last update and its test has a summary too, without this.
        ended=lambda summary: "validation_bits_per_dim" in summary["metrics"],
    )


def update_times(
    file: Path, images: Images, recipes: Mapping[Attention, Recipe], rounds: int
) -> dict[str, Any]:
    """The content of `file`, measured and written there if there is no such file.

    Returns:
        "dataset" and "preset" of the models, "rounds" (the turns of each attention), "seconds" of
        an update by attention, and the "environment".

    Raises:
        ValueError: the file is damaged, or has the times of other models.
    """
    recipe = next(iter(recipes.values()))

    def measure() -> tuple[dict[str, float], dict[str, object]]:
        built: dict[str, nn.Module] = {x: build_model(own, images) for x, own in recipes.items()}
        data = TokenData(images.train, recipe.layout)
        seconds, where = measure_updates(built, data, mean_nats, recipe.training, rounds)
        return seconds, {"rounds": rounds, "environment": where}

    about = {"dataset": recipe.dataset, "preset": recipe.preset}
    return recorded_times(file, about, list(recipes), measure)
