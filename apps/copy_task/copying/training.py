"""Trains a model from a recipe, and writes its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from copying.data import Duplications
from copying.measures import copy_loss, copy_measures
from copying.model import build_model
from copying.presets import Attention, Recipe
from linattn_lab.figures import write_figures
from linattn_lab.plots import plot_run
from linattn_lab.script import require_at_least
from linattn_models.training import RunFolder, is_main_process, train

APP = "copy_task"
DATASET = "copy"

# More than any preset trains on, so that each sequence is drawn anew; short ones recur.
TRAINING_SEQUENCES = 1 << 20


def make_training_data(recipe: Recipe) -> Duplications:
    """The sequences of training, which the seed decides."""
    seed = recipe.training.config().seed
    return Duplications(seed, "training", TRAINING_SEQUENCES, recipe.max_length)


def train_model(
    recipe: Recipe, attention: Attention, preset: str, out: Path, resume: bool
) -> dict[str, Any]:
    """What summary.json in the run folder `out` holds once the model is trained.

    The seed decides the sequences and their order, the same for every attention.
    """
    require_at_least(recipe, {"held_out": 1})
    config = recipe.training.config()
    held_out = Duplications(config.seed, "held-out", recipe.held_out, recipe.max_length)
    torch.manual_seed(config.seed)  # the weights at the start
    model = build_model(recipe, attention)
    summary = train(
        model,
        make_training_data(recipe),
        loss=copy_loss,
        evaluate=lambda model: copy_measures(model, held_out),
        config=config,
        out=out,
        resume=resume,
        describe={
            "app": APP,
            "preset": preset,
            "dataset": DATASET,
            "attention": attention,
            "held_out": recipe.held_out,
        },
        model_config=model.to_dict(),
    )
    if is_main_process():
        plot_run(RunFolder(out))
        write_figures(out, summary["metrics"])
    return summary
