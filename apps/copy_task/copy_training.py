"""A run from a recipe to its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from copy_data import Duplications
from copy_measures import copy_loss, copy_measures
from copy_model import build_model
from copy_presets import Attention, Recipe

from linattn_models.training import RunFolder, train

APP = "copy_task"
DATASET = "copy"

# More than any preset shows a model, so that none sees a sequence twice.
TRAINING_SEQUENCES = 1 << 20


def train_model(
    recipe: Recipe, *, attention: Attention, preset: str, seed: int, out: Path, resume: bool = False
) -> dict[str, Any]:
    """What summary.json in the run folder `out` holds once the model is trained.

    The seed decides the sequences and their order; what the attention is does not.
    """
    held_out = Duplications(seed, "held-out", recipe.held_out, recipe.max_length)
    torch.manual_seed(seed)  # the weights at the start
    model = build_model(recipe, attention)
    summary = train(
        model,
        Duplications(seed, "training", TRAINING_SEQUENCES, recipe.max_length),
        loss=copy_loss,
        evaluate=lambda model: copy_measures(model, held_out),
        config=recipe.training(seed),
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
    if PartialState().is_main_process:
        RunFolder(out).plot_curves()
    return summary
