"""The torch library that the operators stand in, and what their kernels share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from linattn_core import registry
from linattn_core.registry import AttentionCall, Backend
from linattn_core.state import LinearAttentionState

P = ParamSpec("P")
R = TypeVar("R")

_library = torch.library.Library("linattn", "DEF")

# The arguments after the tensors, in schemas of both passes.
HOW = (
    "bool is_causal, bool return_state, str feature_map, float eps, str backend, bool requires_grad"
)


def register(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    context: Callable[..., None] | None = None,
) -> Any:
    """Declares linattn::name and returns it, ready to be called.

    Args:
        schema: arguments and results in torch's notation.
        kernel: computes, on any device.
        shapes: makes empty results, for compilers.
        backward, context: its autograd, as for `torch.library.register_autograd`.
    """
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linattn::{name}", shapes, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            f"linattn::{name}", backward, setup_context=context, lib=_library
        )
    return getattr(torch.ops.linattn, name)


def pair(s: Tensor | None, z: Tensor | None) -> LinearAttentionState | None:
    """The state of two tensors that a schema lists apart."""
    return None if s is None or z is None else LinearAttentionState(s, z)


def unpair(state: LinearAttentionState | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """The two tensors of a state; empty ones where there is none, as a schema has no Tensor?
    results."""
    return (like.new_empty(0), like.new_empty(0)) if state is None else (state.s, state.z)


def in_full_precision(kernel: Callable[P, R]) -> Callable[P, R]:
    """The same kernel, out of reach of autocast, which would lower what is kept in float32."""

    @functools.wraps(kernel)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = cast(Tensor, args[0]).device.type
        if not torch.is_autocast_enabled(kind):  # a decoding step would feel entering the context
            return kernel(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return kernel(*args, **kwargs)

    return run


def select_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    is_causal: bool,
    return_state: bool,
    feature_map: str,
    backend: str,
    requires_grad: bool,
) -> Backend:
    """The backend that runs this call of `linear_attention`."""
    return registry.select(
        backend,
        lambda: AttentionCall.of(
            query,
            key,
            value,
            feature_map,
            is_causal=is_causal,
            padded=key_lengths is not None,
            packed=cu_seqlens is not None,
            initial_state=is_causal and s is not None,
            return_state=return_state,
            requires_grad=requires_grad,
        ),
    )
