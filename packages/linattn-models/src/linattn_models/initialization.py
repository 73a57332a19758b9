"""Weights to start learning from, where they differ from those that torch gives its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

if TYPE_CHECKING:
    from linattn_models.transformer import Block


@torch.no_grad()
def initialize(blocks: nn.ModuleList, *, norm_first: bool) -> None:
    """Spreads queries and keys, and for pre-norm keeps the residual stream's variance bounded.

    Queries and keys of normalized inputs get the standard deviation `mixer.spread`. torch's own,
    0.58, leaves elu + 1 nearly constant, so that linear attention begins as a plain average of all
    values and learns later.

    With pre-norm each of the 2 num_layers sub-layers adds to the stream; the weights that do are
    divided by the square root of their number.
    """
    for module in blocks:
        block = cast("Block", module)
        mixer = block.mixer
        embed_dim = mixer.out.in_features
        compared = (mixer.projections - 1) * embed_dim  # all but the values
        nn.init.normal_(mixer.qkv.weight[:compared], std=mixer.spread * embed_dim**-0.5)
        if norm_first:
            for layer in (mixer.out, block.contract):
                layer.weight.mul_((2 * len(blocks)) ** -0.5)
