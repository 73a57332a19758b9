"""Trains a model from a recipe, and writes its numbers."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from language.data import Windows, spread_windows
from language.presets import Attention, Recipe
from language.tokens import Texts
from linattn_lab.figures import write_figures
from linattn_lab.machine import default_device
from linattn_lab.memory import peak_memory
from linattn_lab.plots import plot_run
from linattn_lab.script import require_at_least
from linattn_lab.tables import memory
from linattn_lab.updates import measure_updates
from linattn_models import AutoregressiveTransformer
from linattn_models.heads.tokenizer import count_tokens
from linattn_models.training import (
    RunFolder,
    is_main_process,
    sum_over_processes,
    take_share,
    train,
)

APP = "text_generation"
PIECES = 1 << 20  # of the training, at least; the order of so many is drawn at its start
AT_ONCE = 16  # bounds the memory of an evaluation


def train_model(
    recipe: Recipe,
    texts: Texts,
    *,
    attention: Attention,
    preset: str,
    dataset: str,
    out: Path,
    resume: bool,
    announce: bool = False,
) -> dict[str, Any]:
    """What summary.json in the run folder `out` holds once the model is trained.

    The seed decides the pieces of text and their order, the same for every attention.

    Args:
        announce: whether a new run prints first what was read, and what it will take.
    """
    require_at_least(recipe, {"held_out": 1, "window_size": 1})
    config = recipe.training.config()
    count = max(PIECES, len(texts.training) // max(recipe.length, 1))
    pieces = Windows(texts.training, config.seed, count, recipe.length)
    held_out = spread_windows(texts.held_out, recipe.held_out, recipe.length)
    torch.manual_seed(config.seed)  # the weights at the start
    model = AutoregressiveTransformer(recipe.transformer(attention), count_tokens(texts.tokenizer))
    model.tokenizer = texts.tokenizer
    if announce and not resume and not RunFolder(out).holds_run():
        announce_run(recipe, texts, model, pieces, out)
    bytes_per_token = texts.counts.held_out_bytes / len(texts.held_out)
    summary = train(
        model,
        pieces,
        loss=text_loss,
        evaluate=lambda model: text_measures(model, held_out, bytes_per_token),
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


def text_loss(model: AutoregressiveTransformer, batch: dict[str, Tensor]) -> Tensor:
    """The mean over the tokens of a batch."""
    return model.loss(batch["tokens"])


def describe_run(
    recipe: Recipe, texts: Texts, attention: Attention, dataset: str
) -> dict[str, object]:
    """What config.json has beside model and training; a resumed run must have the same."""
    return {
        "dataset": dataset,
        "attention": attention,
        "tokenizer": texts.counts.tokenizer,
        "training_tokens": len(texts.training),
        "held_out_tokens": recipe.held_out * min(recipe.length, len(texts.held_out)),
        "data_digest": texts.counts.digest,
    }


def announce_run(
    recipe: Recipe,
    texts: Texts,
    model: AutoregressiveTransformer,
    pieces: Windows,
    out: Path,
) -> None:
    """Prints what was read, what the training takes by its first updates, and where it goes."""
    training, copied = recipe.training, {"model": copy.deepcopy(model)}
    measured, peak = peak_memory(
        torch.device(default_device()),
        lambda: measure_updates(copied, pieces, text_loss, training, rounds=1),
    )
    takes = duration(training.steps * measured["seconds"]["model"])
    if not is_main_process():
        return
    print(describe_texts(texts))
    print(f"model: {sum(x.numel() for x in model.parameters()):,} parameters")
    updates = f"{training.steps:,} updates of {training.batch_size:,} x {recipe.length:,} tokens"
    print(f"training: {updates}; about {takes}, without evaluations, and {memory(peak)} of memory")
    print(f"run: {out}", flush=True)


def describe_texts(texts: Texts) -> str:
    """What was read, in two lines."""
    counts, (training, held_out) = texts.counts, (texts.training, texts.held_out)
    return (
        f"files: {counts.files:,}; {counts.training_bytes:,} bytes to learn from, "
        f"{counts.held_out_bytes:,} held out\n"
        f"tokens: {len(training):,} to learn from, {len(held_out):,} held out, "
        f"a vocabulary of {count_tokens(texts.tokenizer):,} ({counts.tokenizer})"
    )


def duration(seconds: float) -> str:
    """A time in the unit that people use."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


@torch.no_grad()
def text_measures(
    model: AutoregressiveTransformer, pieces: Tensor, bytes_per_token: float
) -> dict[str, float]:
    """The measures of pieces of text (count, length), each token predicted from those before it.

    All processes of torchrun must call it: each measures a part.

    Returns:
        "loss", nats per token; "bits_per_byte"; "accuracy", the share of tokens that are the
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
        "bits_per_byte": loss / math.log(2) / bytes_per_token,
        "accuracy": right / pieces.numel(),
    }
