"""Training within a budget: of updates, or of time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from pixel_datasets import Images
from pixel_presets import Attention, Recipe
from pixel_records import summary_of
from pixel_training import train_model

from linattn_models.training import RunFolder

_LOOKS = 8  # at the validation images while a model trains, at least: the points of its curve


def updates_within(seconds: float, seconds_an_update: float) -> int:
    """How many whole updates fit into `seconds`; one at least."""
    # n times s, divided by s, may come out just below n.
    return max(1, math.floor(seconds / seconds_an_update * (1 + 1e-9)))


def with_updates(recipe: Recipe, steps: int) -> Recipe:
    """The recipe cut or stretched to `steps` updates, its schedule with it."""
    share = max(1, steps // _LOOKS)
    return replace(
        recipe,
        steps=steps,
        eval_every=min(share, recipe.eval_every or share),
        checkpoint_every=min(share, recipe.checkpoint_every or share),
    )


def trained(
    images: Images, recipe: Recipe, attention: Attention, *, preset: str, seed: int, out: Path
) -> RunFolder:
    """The run in `out`, ended: begun and made, resumed, or left as it is if it had ended before.

    Raises:
        ValueError: `out` holds a run with other settings.
    """
    run = RunFolder(out)
    begun = run.config_file.exists()
    if begun:
        _require_same(run, recipe, attention, images.name, preset, seed)
        if run.summary_file.exists() and _measured(run):
            return run
    train_model(
        images, recipe, attention=attention, preset=preset, seed=seed, out=out, resume=begun
    )
    return run


def _measured(run: RunFolder) -> bool:
    # A run killed between its last update and its test has a summary too, without this.
    return "validation_bits_per_dim" in summary_of(run)["metrics"]


def _require_same(
    run: RunFolder, recipe: Recipe, attention: str, dataset: str, preset: str, seed: int
) -> None:
    """Refuses what the training loop would not: more updates under a schedule that has ended."""
    config = run.config()
    training = config.get("training")
    if not isinstance(training, dict):
        raise ValueError(f"{run.config_file}: expected the run's training in it, found none")
    pairs = {
        "dataset": (config.get("dataset"), dataset),
        "attention": (config.get("attention"), attention),
        "preset": (config.get("preset"), preset),
        "seed": (training.get("seed"), seed),
        "updates": (training.get("steps"), recipe.steps),
    }
    other = [f"{name} {was} and not {now}" for name, (was, now) in pairs.items() if was != now]
    if other:
        raise ValueError(f"{run.path} holds a run with {', '.join(other)}: choose another --out")
