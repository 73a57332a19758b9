"""Bits per dimension: how many bits a number of an image costs to somebody who has the model.

A coder that knows p(next | before) spends -log2 p on what comes; the mean over all the numbers of
all the images held out is what the paper's tables give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from pixel_datasets import Pixels
from pixel_tokens import Layout, to_tokens

from linattn_models import AutoregressiveTransformer

POSITIONS_AT_ONCE = 16_384  # of all images of a batch together: bounds the memory


def batches(images: Pixels, layout: Layout) -> Iterator[torch.Tensor]:
    """All of `images` as tokens, in order, in batches that fit into memory."""
    positions = to_tokens(images[:1], layout).shape[1]
    size = max(1, POSITIONS_AT_ONCE // positions)
    for start in range(0, len(images), size):
        yield to_tokens(images[start : start + size], layout)


@torch.no_grad()
def bits_per_dim(model: AutoregressiveTransformer, images: Pixels, layout: Layout) -> float:
    """Mean of -log2 p over every number of `images`, the model in evaluation mode."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nats = 0.0
    for tokens in batches(images, layout):
        nats += model.loss(tokens.to(device)).item() * len(tokens)
    model.train(training)
    return nats / len(images) / math.log(2)
