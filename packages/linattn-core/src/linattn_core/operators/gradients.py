"""The gradients of a call as results of an operator, which cannot be None."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients
from linattn_core.operators.library import Flat

GRADIENTS = Flat(Gradients)


def select_wanted(call: AttentionCall, source: AttentionCall | Gradients) -> Gradients:
    """The fields of `source` whose gradients the call wants; None for the others."""
    wanted = [name for name in call.wanted_gradients if getattr(call, name) is not None]
    return Gradients(
        *(getattr(source, name) if name in wanted else None for name in Gradients._fields)
    )


def gradient_results(call: AttentionCall, gradients: Gradients, like: Tensor) -> tuple[Tensor, ...]:
    """The wanted gradients as results; empty tensors in place of the others."""
    wanted = GRADIENTS.pack(select_wanted(call, gradients))
    return tuple(like.new_empty(0) if x is None else x for x in wanted)


def gradient_shapes(call: AttentionCall, like: Tensor) -> tuple[Tensor, ...]:
    """Empty tensors with the shapes and dtypes of the results, for compilers."""
    inputs = GRADIENTS.pack(select_wanted(call, call))
    return tuple(like.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs)


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """The context of an operator whose backward pass needs no tensor."""
