"""Checks that several parts share: a refusal is one sentence with what was expected and came."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor


def at_least(name: str, value: object, lowest: int) -> None:
    """Refuses anything but an integer of `lowest` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"{name} must be an integer of at least {lowest} and is {value!r}.")


def hash_buckets(name: str, value: object) -> None:
    """Refuses a number of buckets that no rotation gives: 1, or an even number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < 1
        or (value > 1 and value % 2)
    ):
        raise ValueError(
            f"{name} must be 1 or an even number, since a direction and its opposite are a bucket "
            f"each, and is {value!r}."
        )


def one_of(name: str, value: object, known: Collection[str]) -> None:
    """Refuses a name that is not known, offering the near ones."""
    if isinstance(value, str) and value in known:
        return
    near = difflib.get_close_matches(str(value), known, n=2)
    offer = "did you mean " + " or ".join(map(repr, near)) + "?" if near else "known are "
    rest = "" if near else ", ".join(map(repr, known)) + "."
    raise ValueError(f"{name} {value!r} is unknown; {offer}{rest}")


def in_range(name: str, value: object, low: float, high: float) -> None:
    """Refuses anything but a number in [low, high)."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value < high:  # type: ignore[operator]
        wanted = f"at least {low:g}" + ("" if math.isinf(high) else f" and below {high:g}")
        raise ValueError(f"{name} must be a number {wanted} and is {value!r}.")


def exact_keys(
    what: str, given: object, required: Collection[str], optional: Collection[str] = ()
) -> Mapping[str, Any]:
    """Refuses a mapping with keys that are missing or unknown, and what is not a mapping."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a mapping and is a {type(given).__name__}.")
    known = [*required, *optional]
    for key in given:
        one_of(f"{what} has a key that does not belong to it: the key", key, known)
    missing = [key for key in required if key not in given]
    if missing:
        raise ValueError(f"{what} lacks the key(s) {', '.join(map(repr, missing))}.")
    return given


def integer_vector(name: str, values: Tensor, batch: int) -> None:
    """Refuses anything but a (batch,) tensor of integers; reads no values."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor and is a {type(values).__name__}.")
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers and has dtype {values.dtype}.")
    if values.shape != (batch,):
        raise ValueError(
            f"{name} must have shape ({batch},), one length a row, and has {tuple(values.shape)}."
        )


def lengths_within(name: str, lengths: Tensor, batch: int, longest: int) -> tuple[int, int]:
    """The smallest and the largest of (batch,) lengths, all of which must be in 0..longest.

    Cost: waits for the device once.
    """
    integer_vector(name, lengths, batch)
    if batch == 0:
        return longest, longest
    low, high = (int(bound) for bound in lengths.long().aminmax())
    if low < 0 or high > longest:
        raise ValueError(
            f"{name} must lie in 0..{longest} and reach from {low} to {high}; "
            "cut the sequences or correct the lengths."
        )
    return low, high
