"""elu + 1, relu and identity: maps of each number alone, which the kernels apply themselves."""

from __future__ import annotations

from torch import Tensor

from linattn_core import pointwise
from linattn_core.errors import expected, quote
from linattn_core.feature_maps.base import FeatureMap


class Elementwise(FeatureMap):
    """phi of each number alone, F = D.

    "elu" is the paper's choice, phi(x) = elu(x) + 1 (equation 7). "relu" has zero gradient below
    zero, and "identity" can make denominators vanish: both are for experiments.

    Args:
        name: "elu", "relu" or "identity".
    """

    pointwise: str | None

    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in pointwise.POINTWISE:
            wanted = f"one of {', '.join(map(repr, pointwise.POINTWISE))}"
            raise ValueError(expected("name", wanted, quote(name)))
        self.name = name
        # A subclass may compute something else, which the kernels do not know.
        self.pointwise = name if type(self) is Elementwise else None

    def queries(self, x: Tensor) -> Tensor:
        return pointwise.apply(self.name, x)

    def feature_dim(self, head_dim: int) -> int:
        return head_dim

    def extra_repr(self) -> str:
        return repr(self.name)
