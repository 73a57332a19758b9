"""A linear layer whose matrix is that of an embedding, also of one that an adapter changes."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TiedLinear(nn.Module):
    """x W^T + b, where W (outputs, E) is the weight of an `nn.Embedding` of the same model.

    The weight stands in the state dict once, under the name of the embedding. Where an adapter has
    taken the place of the embedding, as LoRA does, W is the matrix with the adapter.

    Args:
        tables: a list whose only module is the embedding, not registered as a submodule.
        bias: whether there is a bias, zeros at first.
    """

    bias: nn.Parameter | None

    def __init__(self, tables: nn.ModuleList, bias: bool) -> None:
        super().__init__()
        self._tables = (tables,)
        outputs = len(self.weight)
        self.register_parameter("bias", nn.Parameter(torch.zeros(outputs)) if bias else None)

    @property
    def table(self) -> nn.Module:
        """The embedding, or what has taken its place."""
        return self._tables[0][0]

    @property
    def weight(self) -> Tensor:
        """(outputs, E), the embedding's."""
        return cast(Tensor, self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., E) -> (..., outputs)."""
        weight, table = self.weight, self.table
        if not isinstance(table, nn.Embedding):
            weight = table(torch.arange(len(weight), device=weight.device))
        return F.linear(x, weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes that `repr` shows."""
        outputs, inputs = self.weight.shape
        return f"in_features={inputs}, out_features={outputs}, bias={self.bias is not None}"
