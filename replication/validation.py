"""Files that other code wrote, or nobody meant to: what is wrong with one names it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linattn_core.errors import expected, quote
from replication.sources import ROOT

# What code meets in a file whose parts are missing or of other types, or nested too deep.
FAULTS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def reading(file: Path, wanted: str, advice: str = "") -> Iterator[None]:
    """Inside, what goes wrong with the content of a file becomes one sentence that names it.

    Args:
        wanted: what the file should hold.
        advice: what to do.

    Raises:
        ValueError: for any of `FAULTS`.
    """
    try:
        yield
    except FAULTS as fault:
        name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        words = fault if isinstance(fault, ValueError) else f"{type(fault).__name__}: {fault}"
        raise ValueError(expected(str(name), wanted, f"a fault in it ({words})", advice)) from fault


@contextlib.contextmanager
def loaded(file: Path) -> Iterator[Any]:
    """The JSON of a file, {} where there is none; faults while it is read as for `reading`."""
    with reading(file, "what its command writes"):
        yield json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def number(record: Any, *keys: str) -> float:
    """The number of a record to which these keys lead.

    Raises:
        ValueError: there is none.
    """
    for key in keys:
        if not isinstance(record, Mapping) or key not in record:
            raise ValueError(expected(".".join(keys), "a number", "none"))
        record = record[key]
    require_type(record, float, ".".join(keys))
    value: float = record
    return value


def require_type(value: Any, kind: Any, what: str) -> None:
    """Refuses a value from JSON that is not of a field's type, and so on within dataclasses.

    Args:
        kind: str, bool, int, float, a Literal, a Mapping of names, a dataclass, or one of them or
            None.

    Raises:
        ValueError: naming the field.
    """
    if isinstance(kind, types.UnionType):
        if value is not None:
            require_type(value, typing.get_args(kind)[0], what)
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
        _require(isinstance(value, kind), value, f"a {kind.__name__}", what)
        for name, inner in typing.get_type_hints(kind).items():
            require_type(getattr(value, name), inner, f"{what}.{name}")
    elif typing.get_origin(kind) is typing.Literal:
        known = typing.get_args(kind)
        _require(value in known, value, f"one of {', '.join(known)}", what)
    elif typing.get_origin(kind) is Mapping:
        _require(isinstance(value, dict), value, "values by name", what)
        for name, each in value.items():
            require_type(each, typing.get_args(kind)[1], f"{what}[{name!r}]")
    else:
        _require(_is(value, kind), value, f"a {kind.__name__}", what)


def _is(value: object, kind: type) -> bool:
    """Whether a value is one of a plain type: an int that fits is a float, a bool is no number."""
    if kind is float and type(value) is int:
        return abs(value) <= sys.float_info.max
    return type(value) is kind


def _require(holds: bool, value: object, wanted: str, what: str) -> None:
    if not holds:
        raise ValueError(expected(what, wanted, quote(value)))
