"""Checks that several modules share; each refusal is one sentence of `linattn_core.errors`."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from linattn_core.errors import LONGEST, expected, near, quote
from linattn_core.values import can_be_read

Fields = TypeVar("Fields")


def as_int(value: object) -> int | None:
    """The value as an int if it is an integer, also of NumPy or in a tensor; else None."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def as_ints(name: str, values: object) -> list[int]:
    """An integer or several (a sequence, an array, a tensor) as a list; refuses anything else."""
    single = as_int(values)
    if single is not None:
        return [single]
    try:
        several = list(values) if isinstance(values, Iterable) else [values]
    except TypeError:  # an array or a tensor without dimensions
        several = [values]
    integers = [as_int(value) for value in several]
    if None in integers:
        raise TypeError(expected(name, "an int or several", quote(several[integers.index(None)])))
    return cast(list[int], integers)


def int_list(name: str, values: object) -> list[int]:
    """A sequence of integers, an array or a tensor (N,) as a list; refuses anything else."""
    if as_int(values) is not None:
        raise TypeError(expected(name, "a list of integers", quote(values)))
    return as_ints(name, values)


def at_least(name: str, value: object, lowest: int) -> int:
    """The value as an int; refuses anything but an integer of `lowest` or more."""
    number = as_int(value)
    if number is None or number < lowest:
        raise ValueError(expected(name, f"an integer of at least {lowest}", quote(value)))
    return number


def fields_at_least(record: object, lowest: int, *names: str) -> None:
    """Makes fields of a frozen dataclass ints, as `at_least`."""
    for name in names:
        object.__setattr__(record, name, at_least(name, getattr(record, name), lowest))


def hash_buckets(value: object) -> int:
    """The value as an int; refuses anything but 1 or an even number.

    A direction and its opposite are two buckets.
    """
    number = as_int(value)
    if number is None or number < 1 or (number > 1 and number % 2):
        raise ValueError(expected("buckets", "1 or an even number of buckets", quote(value)))
    return number


def name_of(kind: type) -> str:
    """The name of a class behind its article."""
    name = kind.__name__
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"


def instance(name: str, value: object, *kinds: type, advice: str = "") -> None:
    """Refuses anything but an instance of one of the classes."""
    if not isinstance(value, kinds):
        got = f"the class {value.__name__}" if isinstance(value, type) else name_of(type(value))
        wanted = " or ".join(map(name_of, kinds))
        raise TypeError(expected(name, wanted, got, advice))


def boolean(name: str, value: object) -> None:
    """Refuses anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(expected(name, "True or False", quote(value)))


def one_of(name: str, value: object, known: Collection[str]) -> None:
    """Refuses an unknown name; the error suggests similar ones."""
    if not isinstance(value, str) or value not in known:
        advice = near(str(value)[:LONGEST], known)
        raise ValueError(expected(name, "a known name", quote(value), advice))


def in_range(name: str, value: object, low: float, high: float) -> None:
    """Refuses anything but a number in [low, high)."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value < high:  # type: ignore[operator]
        wanted = f"a number of at least {low:g}"
        wanted += ", finite" if math.isinf(high) else f" and below {high:g}"
        raise ValueError(expected(name, wanted, quote(value)))


def json_object(content: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in a text; refuses anything else."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(expected(what, "whole JSON", error)) from error
    if not isinstance(value, dict):
        raise ValueError(expected(what, "a JSON object", name_of(type(value))))
    return value


def exact_keys(
    what: str, values: object, required: Collection[str], optional: Collection[str] = ()
) -> Mapping[str, Any]:
    """Refuses a mapping with missing or unknown keys, and anything but a mapping."""
    if not isinstance(values, Mapping):
        raise ValueError(expected(what, "a mapping", name_of(type(values))))
    for key in values:
        one_of(f"a key of {what}", key, [*required, *optional])
    missing = [key for key in required if key not in values]
    if missing:
        wanted = f"the keys {', '.join(map(repr, missing))}"
        raise ValueError(expected(what, wanted, f"the keys {', '.join(map(repr, values))}"))
    return values


def from_fields(cls: type[Fields], what: str, values: object) -> Fields:
    """The dataclass whose fields a mapping holds; refuses missing and unknown ones."""
    required = [field.name for field in fields(cls) if field.default is MISSING]  # type: ignore[arg-type]
    optional = [field.name for field in fields(cls) if field.default is not MISSING]  # type: ignore[arg-type]
    return cls(**exact_keys(what, values, required, optional))


def integers(name: str, values: Tensor) -> None:
    """Refuses anything but a tensor of integers."""
    instance(name, values, Tensor)
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise TypeError(expected(name, "a tensor of integers", f"dtype {values.dtype}"))


def lengths_within(
    name: str, lengths: Tensor, batch: int, longest: int, shortest: int = 0
) -> tuple[int, int]:
    """Checks that lengths (batch,) are in shortest..longest; returns the smallest and the largest.

    Where values cannot be read, as under torch.compile and vmap, only shape and dtype are checked;
    the result is then (shortest, longest).

    Cost: waits for the device once.
    """
    integers(name, lengths)
    if lengths.shape != (batch,):
        raise wrong_shape(name, f"({batch},), one number a row", lengths)
    if not can_be_read(lengths):
        return shortest, longest
    if batch == 0:
        return longest, longest
    low, high = (int(bound) for bound in lengths.long().aminmax())
    if low < shortest or high > longest:
        wanted = f"lengths in {shortest}..{longest}"
        advice = "leave such rows out, cut the sequences or correct the lengths"
        raise ValueError(expected(name, wanted, f"{low} to {high}", advice))
    return low, high


def no_dropout(training: bool, dropout: float) -> None:
    """Refuses to generate from a model that would drop out."""
    if training and dropout > 0:
        got = f"training mode with dropout {dropout:g}"
        raise ValueError(expected("the model", "evaluation mode", got, "call model.eval() first"))


def wrong_shape(name: str, wanted: str, x: Tensor) -> ValueError | TypeError:
    """The error about a tensor of another shape; a nested tensor may have none."""
    if x.is_nested:
        advice = "pad it and pass the lengths"
        return TypeError(expected(name, "a dense tensor", "a nested tensor", advice))
    return ValueError(expected(name, f"shape {wanted}", tuple(x.shape)))


def check_vectors(x: Tensor, embed_dim: int) -> None:
    """Refuses anything but one vector per row, (B, E)."""
    if x.is_nested or x.ndim != 2 or x.shape[1] != embed_dim:
        raise wrong_shape("x of a step", f"(batch, {embed_dim})", x)


def check_vector_sequences(x: Tensor, embed_dim: int, name: str = "x") -> None:
    """Refuses anything but (B, N, E)."""
    if x.is_nested or x.ndim != 3 or x.shape[2] != embed_dim:
        raise wrong_shape(name, f"(batch, length, {embed_dim})", x)


def key_mask_of(mask: Tensor, x: Tensor) -> Tensor:
    """The mask of keys x (B, L, ...) on the device of `x`."""
    batch, length = x.shape[:2]
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        advice = "True takes part; convert it by .bool()"
        raise TypeError(expected("attn_mask", "a tensor of torch.bool", got, advice))
    if mask.shape != (batch, length):
        shape = f"shape ({batch}, {length}), True at positions that take part"
        advice = "is_causal belongs to the configuration"
        raise ValueError(expected("attn_mask", shape, tuple(mask.shape), advice))
    return mask.to(x.device)
