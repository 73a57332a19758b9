"""A linear layer laid out in memory for one vector at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WideningLinear(nn.Module):
    """y = x W + b with more outputs than inputs, W kept as (inputs, outputs).

    `nn.Linear` keeps W transposed. For a single vector, once the weights of a whole model no longer
    stay in the cache, reading the fewer but longer rows of this layout is up to twice as fast; for
    many vectors at once both are alike.

    Args:
        inputs, outputs: the last dimensions of x and y.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5  # as nn.Linear starts
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return F.linear(x, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
