"""Bits per dimension: the mean of -log2 p(number | numbers before it) over held-out images.

That is the length of the code in which the model could store an image, and what the paper's tables
give.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from linattn_models import AutoregressiveTransformer
from linattn_models.basics.modes import evaluating
from linattn_models.training import sum_over_processes, take_share
from pixels.datasets import Pixels
from pixels.tokens import Layout, TokenData, to_tokens

POSITIONS_AT_ONCE = 16_384  # of all images of a batch together: bounds the memory
PSEUDO_COUNT = 0.5


@torch.no_grad()
def bits_per_dim(model: AutoregressiveTransformer, images: Pixels, layout: Layout) -> float:
    """Mean of -log2 p over every number of `images`, the model in evaluation mode.

    All processes of torchrun must call it: each measures a part.
    """
    data, nats = TokenData(images, layout), 0.0
    size = max(1, POSITIONS_AT_ONCE // to_tokens(images[:1], layout).shape[1])
    with evaluating(model):
        own = take_share(torch.arange(len(images)))  # may be empty
        for indices in own.split(size) if len(own) else ():
            tokens = data.batch(indices)
            nats += model.loss(tokens.to(model.device)).item() * len(tokens)
    (nats,) = sum_over_processes(nats)
    return nats / len(images) / math.log(2)


def independent_pixels(train: Pixels, held_out: Pixels, levels: int) -> float:
    """Bits per dimension of `held_out` when each position has its own frequencies and no context.

    p_i(v) = (count of level v at position i + 1/2) / (n + levels / 2), counted on `train`.

    The half that is added (the estimator of Krichevsky and Trofimov) makes a level that was never
    seen at a position cost a finite number of bits. A model that needs more bits than this has
    learned nothing about how pixels depend on one another.
    """
    seen = train.reshape(len(train), -1)
    coded = held_out.reshape(len(held_out), -1)
    positions = np.arange(seen.shape[1])
    counts = np.full((seen.shape[1], levels), PSEUDO_COUNT)
    for image in seen:
        counts[positions, image] += 1
    bits = -np.log2(counts / counts.sum(axis=1, keepdims=True))
    return float(np.mean([bits[positions, image].mean() for image in coded]))
