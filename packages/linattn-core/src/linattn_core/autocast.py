"""Autocast, also for meta tensors, where torch itself raises an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

R = TypeVar("R")


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype to which autocast casts on this type of device; None where it is off."""
    return torch.get_autocast_dtype(device_type) if is_autocast(device_type) else None


def is_autocast(device_type: str) -> bool:
    """Whether autocast is on for this type of device."""
    return device_type != "meta" and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """A context without autocast, in which sums keep their dtype."""
    if device_type == "meta":
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def in_full_precision(device_type: str, function: Callable[..., R], *arguments: Any) -> R:
    """The result of the function without autocast, which would cast float32 sums to half."""
    # `is_autocast`, written out to save a call. Asking is cheaper than entering the context.
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return function(*arguments)
    with without_autocast(device_type):
        return function(*arguments)
