"""The two linear layers around the heads: to queries, keys and values, and from their outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.attention.rotary import Rotation, rotate
from linattn_models.description import is_plain
from linattn_models.validation import as_int


class Projections(nn.Module):
    """One linear layer from x to all heads, and one from the heads' outputs back.

    Args:
        embed_dim: E.
        heads: heads of each projection: (H, H_kv, H_kv) for queries, keys and values, or (H, H)
            where queries and keys share a projection.
        head_dim: D.
        bias: whether both layers have biases.

    Attributes:
        qkv: (B, N, E) -> the projections, concatenated.
        out: (B, N, H D) -> (B, N, E).
    """

    def __init__(
        self, embed_dim: int, heads: Sequence[int], head_dim: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads = tuple(heads)
        self.head_dim = head_dim
        self.qkv = nn.Linear(embed_dim, sum(self.heads) * head_dim, bias=bias)
        self.out = nn.Linear(self.num_heads * head_dim, embed_dim, bias=bias)

    @property
    def num_heads(self) -> int:
        """H, heads of queries."""
        return self.heads[0]

    @property
    def num_kv_heads(self) -> int:
        """H_kv, heads of keys and values."""
        return self.heads[-1]

    @property
    def num_compared(self) -> int:
        """Outputs of `qkv` that are queries or keys; those after them are values."""
        return sum(self.heads[:-1]) * self.head_dim

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, ...]:
        """The projections of x (B, N, E), (B, H or H_kv, N, D) each, as views.

        A rotation turns queries and keys.

        The split comes before the transpose, so that backward joins the gradients by one copy.
        """
        parts = self._split(x, rotation)  # (B, N, H or H_kv, D) each
        return tuple(part.transpose(1, 2) for part in parts)

    def project_next(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, ...]:
        """The same for one position: (B, E) -> (B, H or H_kv, D) each."""
        return self._split(x, rotation)

    def project_one(self, x: Tensor, index: int) -> Tensor:
        """Only the projection `index` of x (B, N, E), 0 for queries: (B, heads, N, D)."""
        if not is_plain(self.qkv, nn.Linear):  # adapters such as LoRA add to the weight's product
            return self.project(x)[index]
        start = sum(self.heads[:index]) * self.head_dim
        rows = slice(start, start + self.heads[index] * self.head_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return self._by_head(F.linear(x, self.qkv.weight[rows], bias)).transpose(1, 2)

    def join(self, heads: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, N, E)."""
        joined: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return joined

    def _split(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, ...]:
        """(..., E) -> (..., H or H_kv, D) each."""
        by_head = self._by_head(self.qkv(x))
        if rotation is None:
            return tuple(by_head.split(self.heads, dim=-2))
        compared, value = by_head.split((sum(self.heads[:-1]), self.heads[-1]), dim=-2)
        return (*rotate(compared, rotation).split(self.heads[:-1], dim=-2), value)

    def _by_head(self, x: Tensor) -> Tensor:
        """(..., heads D) -> (..., heads, D)."""
        by_head: Tensor = x.unflatten(-1, (x.shape[-1] // self.head_dim, self.head_dim))
        return by_head


def resolve_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    """H_kv; H where `num_kv_heads` is None."""
    kv_heads = num_heads if num_kv_heads is None else as_int(num_kv_heads)
    if kv_heads is None or kv_heads < 1 or num_heads % kv_heads:
        wanted = f"a divisor of num_heads {num_heads}"
        raise ValueError(expected("num_kv_heads", wanted, num_kv_heads))
    return kv_heads
