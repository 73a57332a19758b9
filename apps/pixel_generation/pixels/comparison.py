"""Runs side by side: every attention within equal updates and equal time, or any finished runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pixels.datasets import Images
from pixels.models import APP, build_model
from pixels.presets import Attention, Recipe
from pixels.tokens import TokenData
from pixels.training import mean_nats, train_model
from torch import nn

from linattn_core.errors import expected
from linattn_models.files import replace_file
from linattn_models.training import (
    Panel,
    Points,
    RunFolder,
    copy_records,
    measure_updates,
    plot_panels,
    points,
    run_summary,
    trained_run,
    updates_within,
    with_steps,
)

FILES = ("table.md", "curves.png", "results.json", "timings.json")
YLABEL = "bits/dim, validation images"


@dataclass(frozen=True)
class UpdateTimes:
    """Seconds an update by attention, and where they were measured.

    Attributes:
        dataset, preset: of the models that were timed.
        rounds: how often each attention had its turn.
        seconds: the median of an attention's rounds.
        environment: versions, device and threads.
    """

    dataset: str
    preset: str
    rounds: int
    seconds: Mapping[str, float]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """The two runs of one attention, which may be the same one."""

    equal_updates: RunFolder
    equal_time: RunFolder


@dataclass(frozen=True)
class Comparison:
    """All runs, which have ended, and their budgets.

    Attributes:
        recipe: of the runs with equal updates, apart from their attention.
        seconds: the budget of time.
        of_linear: whether that is the time of linear attention's updates.
        times: seconds an update.
        pairs: the runs of each attention.
    """

    recipe: Recipe
    seconds: float
    of_linear: bool
    times: UpdateTimes
    pairs: Mapping[Attention, Pair]

    def results(self) -> dict[str, Any]:
        """The content of results.json."""
        return {
            "app": APP,
            "dataset": self.recipe.dataset,
            "preset": self.recipe.preset,
            "seed": self.recipe.training.seed,
            "steps": self.recipe.training.steps,
            "budget_seconds": self.seconds,
            "budget_of_linear": self.of_linear,
            "timing": {"rounds": self.times.rounds, "environment": self.times.environment},
            "attentions": {
                name: {
                    "seconds_an_update": self.times.seconds[name],
                    "equal_updates": run_summary(pair.equal_updates, APP),
                    "equal_time": run_summary(pair.equal_time, APP),
                }
                for name, pair in self.pairs.items()
            },
        }

    def draw(self, path: Path) -> None:
        """A PNG: equal updates over updates, and equal time over seconds at the measured pace."""
        updates: dict[str, Points] = {
            name: curve(pair.equal_updates) for name, pair in self.pairs.items()
        }
        seconds: dict[str, Points] = {
            name: curve(pair.equal_time, scale=self.times.seconds[name])
            for name, pair in self.pairs.items()
        }
        panels = [
            Panel("updates, equally many of each", updates),
            Panel("seconds of updates, equally long for each", seconds),
        ]
        plot_panels(path, panels, ylabel=YLABEL)

    def publish(self, out: Path, folder: Path) -> None:
        """Copies what was written into `out` to `folder`, and of the runs there their records."""
        for file in FILES:
            replace_file(folder / file, (out / file).read_bytes())
        for pair in self.pairs.values():
            for run in (pair.equal_updates, pair.equal_time):
                copy_records(run, folder / run.path.relative_to(out))


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
) -> Comparison:
    """Times the updates, then makes every run in `out` that has not ended: equal updates first.

    Args:
        recipe: of every run, apart from the attention; its steps are the budget of updates.
        rounds: turns of each attention while updates are timed.
        seconds: the budget of time; what linear attention takes for those steps if None.

    Raises:
        ValueError: `out` holds other times or runs.
    """
    of_linear, steps = seconds is None, recipe.training.steps
    recipes = {name: replace(recipe, attention=name) for name in attentions}
    times = update_times(out / "timings.json", images, recipes, rounds)
    budget = seconds if seconds is not None else steps * times.seconds["linear"]
    equal = {name: _ended(images, own, out / "updates") for name, own in recipes.items()}
    pairs = {}
    for name, run in equal.items():
        affordable = updates_within(budget, times.seconds[name])
        training = with_steps(recipe.training, affordable)
        own = replace(recipes[name], training=training)
        timed = run if affordable == steps else _ended(images, own, out / "time")
        pairs[name] = Pair(run, timed)
    return Comparison(recipe, budget, of_linear, times, pairs)


def _ended(images: Images, recipe: Recipe, folder: Path) -> RunFolder:
    """The run in folder/ATTENTION: made, resumed, or left as it is if it had ended before."""
    out, training = folder / recipe.attention, recipe.training
    print(f"\n{recipe.attention} attention, {training.steps:,} updates, in {out}", flush=True)
    settings = {name: getattr(recipe, name) for name in ("preset", "dataset", "attention")}
    return trained_run(
        out,
        lambda resume: train_model(images, recipe, out, resume=resume),
        {**settings, "training.seed": training.seed, "training.steps": training.steps},
        # A run killed between its last update and its test has a summary too, without this.
        ended=lambda summary: "validation_bits_per_dim" in summary["metrics"],
    )


def update_times(
    file: Path, images: Images, recipes: Mapping[Attention, Recipe], rounds: int
) -> UpdateTimes:
    """The times in `file`, measured and written there if there is no such file.

    Raises:
        ValueError: the file is damaged, or has the times of other models.
    """
    recipe = next(iter(recipes.values()))
    if file.exists():
        return _checked(_read(file), file, recipe, list(recipes))
    models: dict[str, nn.Module] = {x: build_model(own, images) for x, own in recipes.items()}
    data = TokenData(images.train, recipe.layout)
    seconds, where = measure_updates(models, data, mean_nats, recipe.training, rounds)
    times = UpdateTimes(recipe.dataset, recipe.preset, rounds, seconds, where)
    replace_file(file, (json.dumps(asdict(times), indent=2) + "\n").encode())
    return times


def _read(file: Path) -> UpdateTimes:
    damaged = partial(expected, str(file), "the times of updates", advice="remove it")
    try:
        times = UpdateTimes(**json.loads(file.read_bytes()))
        sound = all(0 < seconds < math.inf for seconds in times.seconds.values())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(damaged(f"a fault in it ({error})")) from None
    if not sound:
        raise ValueError(damaged(times.seconds))
    return times


def _checked(
    times: UpdateTimes, file: Path, recipe: Recipe, attentions: Sequence[Attention]
) -> UpdateTimes:
    refused = partial(expected, str(file), advice="choose another --out")
    if (times.dataset, times.preset) != (recipe.dataset, recipe.preset):
        wanted = f"times of {recipe.dataset} with the preset {recipe.preset}"
        raise ValueError(refused(wanted, f"times of {times.dataset} with {times.preset}"))
    absent = [name for name in attentions if name not in times.seconds]
    if absent:
        wanted = f"times of {', '.join(attentions)}, which are measured together"
        raise ValueError(refused(wanted, f"none of {', '.join(absent)}"))
    return times
