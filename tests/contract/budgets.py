"""The one table of error budgets.

A backend's error against the float64 oracle may be at most twice torch's own error for the same
formula (the quadratic reference) in the same dtype, plus a rounding floor. The floor is for cases
so small that torch happens to be exact, and for float64, where torch is the oracle. It is relative
to 1 at least, the size of the inputs: a gradient that cancels to nearly zero is no more exact than
the terms that it is the difference of. Where inputs are of any size, as in random calls, the terms
themselves are summed without their signs (`terms`), and each number of a result may be off by the
floor of a number as large as its own terms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FACTOR = 2.0

# Units of the dtype's epsilon, of the largest number of the tensor or 1.
FLOOR = {
    torch.float64: 16.0,
    torch.float32: 16.0,
    torch.bfloat16: 1.0,
    torch.float16: 1.0,
}

# (backend, quantity) -> factor instead of FACTOR, each with its reason.
EXCEPTIONS: dict[tuple[str, str], float] = {}


def error(x: Tensor, oracle: Tensor) -> float:
    """Largest absolute difference."""
    return (x.double() - oracle).abs().max().item() if oracle.numel() else 0.0


def budget(backend: str, quantity: str, own: float, oracle: Tensor, dtype: torch.dtype) -> float:
    """The largest error allowed for one tensor."""
    if not oracle.numel():
        return 0.0
    if not math.isfinite(own):
        own = 0.0  # float16 loses eps and divides 0 by 0: torch's error is no yardstick there
    largest = max(1.0, oracle.abs().max().item())
    return EXCEPTIONS.get((backend, quantity), FACTOR) * own + roundings(dtype) * largest


def roundings(dtype: torch.dtype) -> float:
    """The rounding floor of numbers of size 1."""
    return FLOOR[dtype] * torch.finfo(dtype).eps
