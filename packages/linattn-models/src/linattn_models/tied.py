"""A linear layer whose matrix is that of an embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TiedLinear(nn.Module):
    """x W^T + b, where W (outputs, E) is the weight of an `nn.Embedding` of the same model.

    The weight stands in the state dict once, under the name of the embedding.

    Args:
        table: the embedding, not registered as a submodule.
        bias: whether there is a bias, zeros at first.
    """

    bias: nn.Parameter | None

    def __init__(self, table: nn.Embedding, bias: bool) -> None:
        super().__init__()
        self._table = (table,)
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(table.num_embeddings)) if bias else None
        )

    @property
    def table(self) -> nn.Embedding:
        """The embedding."""
        return self._table[0]

    @property
    def weight(self) -> Tensor:
        """(outputs, E), the embedding's."""
        return self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., E) -> (..., outputs)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes that `repr` shows."""
        outputs, inputs = self.weight.shape
        return f"in_features={inputs}, out_features={outputs}, bias={self.bias is not None}"
