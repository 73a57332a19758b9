"""What torch must be told, or asked, about memory that native code writes by its address."""

from __future__ import annotations

import torch
from torch import Tensor


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
