"""What backends in native code share: results, addresses, and what torch must be told of both.

Native code links no torch: it is handed the addresses of tensors that torch has allocated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.state import LinearAttentionState

Strided = tuple[int, int, int, int, int]


class Output(NamedTuple):
    """What the forward pass leaves; see `linattn_core.registry.Backend.attention`."""

    out: Tensor
    state: LinearAttentionState | None
    normalizer: Tensor


class Gradients(NamedTuple):
    """What the backward pass leaves: gradients of q, k, v and of the starting state."""

    query: Tensor
    key: Tensor
    value: Tensor
    state: LinearAttentionState | None


def strided(x: Tensor) -> Strided:
    """Where a (B, H, N, D) tensor lies and how: address, strides in elements."""
    batch, head, position, dim = x.stride()
    return x.data_ptr(), batch, head, position, dim


def contiguous(state: LinearAttentionState | None) -> LinearAttentionState | None:
    """The same numbers, contiguous; the caller keeps them while native code reads them."""
    return None if state is None else LinearAttentionState(*(x.contiguous() for x in state))


def addresses(state: LinearAttentionState | None) -> tuple[int, int]:
    """Those of s and z, 0 where there is no state."""
    return (0, 0) if state is None else (state.s.data_ptr(), state.z.data_ptr())


def written_in_place(*tensors: Tensor) -> None:
    """Lets autograd notice, as after an operation of its own, that saved tensors have changed."""
    tracked = [x for x in tensors if not x.is_inference()]
    if tracked:
        torch.autograd.graph.increment_version(tracked)


def check_own_memory(name: str, x: Tensor) -> None:
    """Refuses a tensor whose elements share memory, which rows would update for one another.

    Raises:
        ValueError: for an expanded tensor.
    """
    if 0 in x.stride() and any(
        stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)
    ):
        raise ValueError(
            f"{name} was expected to have memory of its own for each sequence and is expanded, "
            f"with strides {x.stride()}; make it by .clone()."
        )
