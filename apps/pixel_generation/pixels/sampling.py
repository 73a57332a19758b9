"""Images drawn from a model pixel by pixel, all images side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linattn_models import AutoregressiveTransformer
from linattn_models.basics.modes import evaluating
from pixels.datasets import Pixels
from pixels.tokens import Layout, to_images, to_tokens

# Seeds that people choose are smaller. The generator of a CPU reads 32 bits of a seed.
PART_SEEDS = 1 << 20


@dataclass(frozen=True)
class Draw:
    """How pixels are drawn: below a temperature of 1 the likely ones more often; 0 is greedy.

    With `progress`, a terminal shows a bar; a log gets none.
    """

    temperature: float = 1.0
    seed: int = 0
    progress: bool = False

    def part(self, number: int) -> Draw:
        """For the parts of many images, of which the first has the seed itself."""
        return replace(self, seed=self.seed + PART_SEEDS * number)


def sample_images(
    model: AutoregressiveTransformer, count: int, height: int, width: int, draw: Draw = Draw()
) -> Pixels:
    """`count` images, drawn without a prompt."""
    return to_images(_generate(model, draw, batch=count), height, width)


def complete_images(
    model: AutoregressiveTransformer,
    images: Pixels,
    copies: int,
    layout: Layout,
    *,
    rows_shown: int,
    draw: Draw = Draw(),
) -> Pixels:
    """Completions of `images` (n, H, W[, 3]) of which only the first rows are shown.

    The rows shown are read in parallel, as in training (`prefill`); the hidden ones are then drawn
    pixel by pixel from the state after them.

    Returns:
        (n, copies, H, W[, 3]): `copies` completions of each image.
    """
    shown = to_tokens(images[:, :rows_shown], layout).repeat_interleave(copies, dim=0)
    tokens = _generate(model, draw, prefix=shown.to(model.device))
    completed = to_images(tokens, images.shape[1], images.shape[2])
    return completed.reshape(len(images), copies, *images.shape[1:])


def _generate(
    model: AutoregressiveTransformer,
    draw: Draw,
    *,
    batch: int | None = None,
    prefix: Tensor | None = None,
) -> Tensor:
    with evaluating(model):
        tokens: Tensor = model.generate(
            batch,
            prefix=prefix,
            temperature=draw.temperature,
            generator=torch.Generator(model.device).manual_seed(draw.seed),
            progress=draw.progress and sys.stderr.isatty(),
        )
        return tokens
