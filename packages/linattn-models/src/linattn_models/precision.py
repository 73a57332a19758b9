"""Where a layer computes, and in which dtype, also where its weights are quantized."""

from __future__ import annotations

from typing import Any

import torch


def precision_of(linear: Any) -> tuple[torch.device, torch.dtype]:
    """The device of an `nn.Linear` and the dtype of its outputs.

    The weight of a layer that `torch.ao.quantization` replaced is a method; its outputs are
    float32.
    """
    if callable(linear.weight):
        return linear.weight().device, torch.float32
    return linear.weight.device, linear.weight.dtype
