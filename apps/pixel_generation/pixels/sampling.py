"""Images drawn from a model pixel by pixel, all images side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linattn_models import AutoregressiveTransformer
from linattn_models.basics.modes import evaluating
from pixels.datasets import Pixels
from pixels.tokens import Layout, to_images, to_tokens


@dataclass(frozen=True)
class Draw:
    """How pixels are drawn: below a temperature of 1 the likely ones more often; 0 is greedy.

    With `progress`, a terminal shows a bar; a log gets none.
    """

    temperature: float = 1.0
    seed: int = 0
    progress: bool = False

    def seeds(self, *shape: int) -> Tensor:
        """One for each image, which alone decides it: however many are drawn side by side."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(1 << 62, shape, generator=generator)


def sample_images(
    model: AutoregressiveTransformer, seeds: Tensor, height: int, width: int, draw: Draw = Draw()
) -> Pixels:
    """An image for each of the seeds, drawn without a prompt."""
    return to_images(_generate(model, draw, batch=len(seeds), seeds=seeds), height, width)


def complete_images(
    model: AutoregressiveTransformer,
    images: Pixels,
    seeds: Tensor,
    layout: Layout,
    *,
    rows_shown: int,
    draw: Draw = Draw(),
) -> Pixels:
    """Completions of `images` (n, H, W[, 3]) of which only the first rows are shown.

    Args:
        seeds: (n, copies), one for each completion.

    The rows shown are read in parallel, as in training (`prefill`); the hidden ones are then drawn
    pixel by pixel from the state after them.

    Returns:
        (n, copies, H, W[, 3]): the completions of each image.
    """
    shown = to_tokens(images[:, :rows_shown], layout).to(model.device)
    copies = seeds.shape[1]
    tokens = _generate(model, draw, prefix=shown, num_samples=copies, seeds=seeds.flatten())
    completed = to_images(tokens, images.shape[1], images.shape[2])
    return completed.reshape(len(images), copies, *images.shape[1:])


def _generate(model: AutoregressiveTransformer, draw: Draw, **options: Any) -> Tensor:
    with evaluating(model):
        tokens: Tensor = model.generate(
            **options,
            temperature=draw.temperature,
            progress=draw.progress and sys.stderr.isatty(),
        )
        return tokens
