"""The torch library of the operators, and how records pass through its flat schemas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, get_type_hints

import torch
from torch import Tensor

from linattn_core.autocast import in_full_precision
from linattn_core.calls import AttentionCall, Gradients, StepCall
from linattn_core.state import LinearAttentionState

R = TypeVar("R")
Record = TypeVar("Record", bound=AttentionCall | StepCall | Gradients)

_library = torch.library.Library("linattn", "DEF")

_TYPES = {
    Tensor: "Tensor", Tensor | None: "Tensor?", bool: "bool", float: "float", str: "str",
    tuple[str, ...]: "str",
}  # fmt: skip


def register(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    context: Callable[..., None] | None = None,
) -> Any:
    """Declares the operator linattn::name and returns it.

    Args:
        schema: arguments and results in torch's notation.
        kernel: computes the results, on any device.
        shapes: makes empty results of the right shapes and dtypes, for compilers.
        backward, context: its autograd, as for `torch.library.register_autograd`.
    """
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, full_precision(kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(f"linattn::{name}", shapes, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            f"linattn::{name}", backward, setup_context=context, lib=_library
        )
    return getattr(torch.ops.linattn, name).default


class Flat(Generic[Record]):
    """Converts a record of linattn_core.calls to flat arguments.

    The state becomes two tensors s and z, and names become one string, because torch.jit.trace
    takes no list of strings. The schema is read from the record's annotations, so that a new field
    needs no change here.

    Attributes:
        names: the arguments, s and z in place of the state.
        schema: the declaration of the arguments.
    """

    def __init__(self, record: type[Record], *, in_place: bool = False) -> None:
        hints = get_type_hints(record)
        states = {LinearAttentionState: "Tensor", LinearAttentionState | None: "Tensor?"}
        self._record: Any = record
        self._state: int = next(i for i, x in enumerate(record._fields) if hints[x] in states)
        of_tensors = (Tensor, Tensor | None)
        self._tensors = [i for i, x in enumerate(record._fields) if hints[x] in of_tensors]
        self._names = [i for i, x in enumerate(record._fields) if hints[x] == tuple[str, ...]]
        state = states[hints[record._fields[self._state]]]
        alias_s, alias_z = ("(a!)", "(b!)") if in_place else ("", "")
        declared = [(x, _TYPES.get(hints[x], "")) for x in record._fields]
        both = [("s", state + alias_s), ("z", state + alias_z)]
        declared[self._state : self._state + 1] = both
        self.names = tuple(name for name, _ in declared)
        self.schema = ", ".join(f"{kind} {name}" for name, kind in declared)

    def fields(self, flags: Sequence[bool]) -> tuple[str, ...]:
        """The names of the fields for which the flag of an argument is true."""
        i, fields = self._state, self._record._fields
        names = zip((*fields[: i + 1], *fields[i:]), flags, strict=False)
        return tuple(dict.fromkeys(name for name, flag in names if flag))

    def pack(self, call: Record) -> tuple[Any, ...]:
        """The flat arguments of a record."""
        i = self._state
        fields: list[Any] = list(call)
        for names in self._names:
            fields[names] = " ".join(fields[names])
        return (*fields[:i], *(fields[i] or (None, None)), *fields[i + 1 :])

    def tensors(self, call: Record) -> Sequence[Tensor | None]:
        """The tensors of a record; None for a field without one."""
        fields: tuple[Any, ...] = call
        tensors, state = [fields[i] for i in self._tensors], fields[self._state]
        return tensors if state is None else [*tensors, *state]

    def unpack(self, arguments: Sequence[Any]) -> Record:
        """The record of flat arguments; the inverse of `pack`."""
        i = self._state
        fields = [*arguments[:i], pair(arguments[i], arguments[i + 1]), *arguments[i + 2 :]]
        for names in self._names:
            fields[names] = tuple(fields[names].split())
        record: Record = self._record(*fields)
        return record


def pair(s: Tensor | None, z: Tensor | None) -> LinearAttentionState | None:
    """The state made of s and z, which a schema lists separately; None if one is None."""
    return None if s is None or z is None else LinearAttentionState(s, z)


def results(state: LinearAttentionState | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """A state as results of an operator, which cannot be None: empty tensors where there is none.

    S and z are two tensors, because PyTorch forbids results that share memory.
    """
    return (like.new_empty(0), like.new_empty(0)) if state is None else state


def split_arguments(arguments: Sequence[Any]) -> tuple[list[Tensor | None], list[Any]]:
    """The arguments as two lists of equal length, tensors and others, with None in the gaps."""
    tensors = [x if isinstance(x, Tensor) else None for x in arguments]
    return tensors, [None if isinstance(x, Tensor) else x for x in arguments]


def merge_arguments(tensors: Sequence[Tensor | None], others: Sequence[Any]) -> list[Any]:
    """The inverse of `split_arguments`."""
    return [y if x is None else x for x, y in zip(tensors, others, strict=True)]


def full_precision(kernel: Callable[..., R]) -> Callable[..., R]:
    """The same kernel without autocast."""

    @functools.wraps(kernel)
    def run(*arguments: Any) -> R:
        return in_full_precision(arguments[0].device.type, kernel, *arguments)

    return run
