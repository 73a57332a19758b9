"""Images drawn from a model one pixel at a time, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from pixel_datasets import Pixels
from pixel_tokens import Layout, to_images, to_tokens

from linattn_models import AutoregressiveTransformer, Lsh


def sample_images(
    model: AutoregressiveTransformer,
    count: int,
    height: int,
    width: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = False,
) -> Pixels:
    """`count` images made from nothing."""
    generator = _generator(model, seed)
    with _evaluating(model):
        tokens = model.generate(
            count,
            temperature=temperature,
            generator=generator,
            progress=progress,
            method=way_of(model),
        )
    return to_images(tokens, height, width)


def complete_images(
    model: AutoregressiveTransformer,
    images: Pixels,
    copies: int,
    layout: Layout,
    *,
    rows_shown: int,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = False,
) -> Pixels:
    """What `images` (n, H, W[, 3]) could be of which only the first rows are shown.

    The rows shown are read all at once, as in training (`prefill`); what is hidden is then made
    pixel by pixel from the state that they leave.

    Returns:
        (n, copies, H, W[, 3]): `copies` guesses for each image.
    """
    generator = _generator(model, seed)
    shown = to_tokens(images[:, :rows_shown], layout).repeat_interleave(copies, dim=0)
    with _evaluating(model):
        tokens = model.generate(
            prefix=shown.to(generator.device),
            temperature=temperature,
            generator=generator,
            progress=progress,
            method=way_of(model),
        )
    completed = to_images(tokens, images.shape[1], images.shape[2])
    return completed.reshape(len(images), copies, *images.shape[1:])


def way_of(model: AutoregressiveTransformer) -> Literal["stateful", "rerun"]:
    """How the model generates: LSH has no state to step from and runs the prefix for each token."""
    return "rerun" if isinstance(model.config.attention, Lsh) else "stateful"


@contextmanager
def _evaluating(model: AutoregressiveTransformer) -> Iterator[None]:
    """Within the block the model drops nothing out; afterwards it is as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _generator(model: AutoregressiveTransformer, seed: int) -> torch.Generator:
    return torch.Generator(next(model.parameters()).device).manual_seed(seed)
