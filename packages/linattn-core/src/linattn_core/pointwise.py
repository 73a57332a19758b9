"""The feature maps that act on each number alone, so that kernels can apply them themselves."""

from __future__ import annotations

import torch
from torch import Tensor

#: Maps that every backend applies itself; any other map is applied before the operator.
POINTWISE = ("elu", "relu", "identity")


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 (equation 7): exp(x) below zero, x + 1 above.

    Not computed as `elu(x) + 1`, which rounds to 0 for negative x in half precision. The derivative
    at 0 is 1: that of the exponential is 1, that of relu is 0.
    """
    return _exp_below_zero(x).add(torch.relu(x))


def apply(name: str, x: Tensor) -> Tensor:
    """phi(x), differentiable, for a name in `POINTWISE`."""
    if name == "elu":
        return elu_plus_one(x)
    return torch.relu(x) if name == "relu" else x


def derivative(name: str, x: Tensor) -> Tensor | float:
    """phi'(x), differentiable: exp(x) below zero and 1 above for "elu"; relu's is 0 at 0."""
    if name == "elu":
        return _exp_below_zero(x)
    return (x > 0).to(x.dtype) if name == "relu" else 1.0


def _exp_below_zero(x: Tensor) -> Tensor:
    """exp(x) up to zero, where its derivative is 1; 1 above.

    Not by `clamp`, whose derivative at its bound is 1 up to torch 2.13 and 0 from 2.14 on.
    """
    return torch.exp(x.masked_fill(x > 0, 0))


def apply_into(name: str, x: Tensor, out: Tensor, scratch: Tensor) -> Tensor:
    """phi(x) written into `out` (same shape, accumulation dtype); `scratch` is overwritten."""
    if x.dtype != out.dtype:
        x = scratch.copy_(x)  # clamp does not widen
    if name == "elu":
        torch.clamp(x, max=0, out=out).exp_()
        return out.add_(torch.clamp(x, min=0, out=scratch))
    if name == "relu":
        return torch.clamp(x, min=0, out=out)
    return out.copy_(x)


def multiply_derivative_(name: str, gradient: Tensor, phi: Tensor) -> Tensor:
    """gradient *= phi'(x), computed from phi(x) alone; `phi` is overwritten.

    For elu + 1, phi' = exp(x) = phi below zero; above, phi' = 1 and phi > 1. So phi' = min(phi, 1).
    """
    if name == "elu":
        return gradient.mul_(phi.clamp_(max=1))
    return gradient.mul_(phi.sign_()) if name == "relu" else gradient
