"""The same numbers (B, H, N, D) in other places of memory."""

from __future__ import annotations

import torch
from torch import Tensor


def _misalign(x: Tensor) -> Tensor:
    return torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)


def _interleave_with_nan(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, torch.nan)], dim=-1).flatten(-2)[..., ::2]


LAYOUTS = {
    "misaligned": _misalign,
    "interleaved": _interleave_with_nan,
    "length first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "transposed": lambda x: x.mT.contiguous().mT,
}
