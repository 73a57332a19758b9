"""What lies around the heads: one linear layer to all of them, and their outputs as one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from linattn_core.errors import expected
from linattn_models.attention.rotary import Rotation, rotate
from linattn_models.basics.validation import as_int


def split_heads(
    x: Tensor, heads: Sequence[int], head_dim: int, rotation: Rotation | None = None
) -> tuple[Tensor, ...]:
    """(..., sum(heads) D) -> (..., heads, D) each; a rotation turns all but the last.

    The split comes before a transpose, so that backward joins the gradients by one copy.
    """
    by_head = x.unflatten(-1, (x.shape[-1] // head_dim, head_dim))
    if rotation is None:
        return tuple(by_head.split(heads, dim=-2))
    compared, value = by_head.split((sum(heads[:-1]), heads[-1]), dim=-2)
    return (*rotate(compared, rotation).split(heads[:-1], dim=-2), value)


def join_heads(heads: Tensor) -> Tensor:
    """(B, H, N, D) -> (B, N, H D)."""
    return heads.transpose(1, 2).flatten(2)


def resolve_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    """H_kv; H where `num_kv_heads` is None."""
    kv_heads = num_heads if num_kv_heads is None else as_int(num_kv_heads)
    if kv_heads is None or kv_heads < 1 or num_heads % kv_heads:
        wanted = f"a divisor of num_heads {num_heads}"
        raise ValueError(expected("num_kv_heads", wanted, num_kv_heads))
    return kv_heads
