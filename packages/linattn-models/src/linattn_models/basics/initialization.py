"""Initial weights, where they differ from torch's defaults."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def spread_queries_and_keys(weight: Tensor, spread: float) -> None:
    """Draws a projection (outputs, E) whose outputs have standard deviation `spread`.

    This holds for normalized inputs. With torch's default, 0.58, elu + 1 is nearly constant, so
    that linear attention starts as a plain average of all values and learns more slowly.
    """
    nn.init.normal_(weight, std=spread * weight.shape[1] ** -0.5)


@torch.no_grad()
def bound_residual_stream(layers: Iterable[nn.Linear], sub_layers: int) -> None:
    """Scales the last layer of each sub-layer with norm_first by 1 / sqrt(sub_layers).

    Each sub-layer adds to the residual stream, whose variance would otherwise grow with the depth.
    """
    for layer in layers:
        layer.weight.mul_(sub_layers**-0.5)
