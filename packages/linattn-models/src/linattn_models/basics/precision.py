"""Where a layer computes, and in which dtype, also where its weights are quantized."""

from __future__ import annotations

from typing import Any

import torch


def device_of(linear: Any) -> torch.device:
    """The device of an `nn.Linear`, or of what `torch.ao.quantization` puts in its place."""
    weight = linear.weight
    device: torch.device = (weight() if callable(weight) else weight).device
    return device


def dtype_of(linear: Any) -> torch.dtype:
    """The dtype of the outputs of an `nn.Linear`; float32 where its weights are quantized."""
    return torch.float32 if callable(linear.weight) else linear.weight.dtype
