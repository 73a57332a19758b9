"""Trains a model from a recipe, and writes its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from language.data import VOCABULARY, Dataset, Texts, Windows, spread_windows
from language.presets import Attention, Recipe
from linattn_lab.figures import write_figures
from linattn_lab.plots import plot_run
from linattn_lab.script import require_at_least
from linattn_models import AutoregressiveTransformer
from linattn_models.training import (
    RunFolder,
    is_main_process,
    sum_over_processes,
    take_share,
    train,
)

APP = "text_generation"
PIECES = 1 << 20  # of the training; the order of so many is drawn at its start
AT_ONCE = 16  # bounds the memory of an evaluation


def train_model(
    recipe: Recipe,
    texts: Texts,
    *,
    attention: Attention,
    preset: str,
    dataset: Dataset,
    out: Path,
    resume: bool,
) -> dict[str, Any]:
    """What summary.json in the run folder `out` holds once the model is trained.

    The seed decides the pieces of text and their order, the same for every attention.
    """
    require_at_least(recipe, {"held_out": 1, "window_size": 1})
    config = recipe.training.config()
    pieces = Windows(texts.training, config.seed, PIECES, recipe.length)
    held_out = spread_windows(texts.held_out, recipe.held_out, recipe.length)
    torch.manual_seed(config.seed)  # the weights at the start
    model = AutoregressiveTransformer(recipe.transformer(attention), VOCABULARY)
    summary = train(
        model,
        pieces,
        loss=lambda model, batch: model.loss(batch["tokens"]),
        evaluate=lambda model: text_measures(model, held_out),
        config=config,
        out=out,
        resume=resume,
        describe={
            "app": APP,
            "preset": preset,
            **describe_run(recipe, texts, attention, dataset),
        },
        model_config=model.to_dict(),
    )
    if is_main_process():
        plot_run(RunFolder(out))
        write_figures(out, summary["metrics"])
    return summary


def describe_run(
    recipe: Recipe, texts: Texts, attention: Attention, dataset: Dataset
) -> dict[str, object]:
    """What config.json has beside model and training; a resumed run must have the same."""
    return {
        "dataset": dataset,
        "attention": attention,
        "training_bytes": len(texts.training),
        "held_out_bytes": recipe.held_out * min(recipe.length, len(texts.held_out)),
        "data_digest": texts.digest(),
    }


@torch.no_grad()
def text_measures(model: AutoregressiveTransformer, pieces: Tensor) -> dict[str, float]:
    """The measures of pieces of text (count, length), each byte predicted from those before it.

    All processes of torchrun must call it: each measures a part.

    Returns:
        "loss", nats per byte; "bits_per_byte"; "accuracy", the share of bytes that are the
        likeliest guess.
    """
    nats = right = 0.0
    for batch in take_share(pieces).split(AT_ONCE):
        tokens = batch.to(model.device)
        parameters = model(tokens)
        nats += float(model.head.negative_log_likelihood(parameters, tokens).double().sum())
        right += float((parameters.argmax(-1) == tokens).sum())
    nats, right = sum_over_processes(nats, right)
    loss = nats / pieces.numel()
    return {
        "loss": loss,
        "bits_per_byte": loss / math.log(2),
        "accuracy": right / pieces.numel(),
    }
