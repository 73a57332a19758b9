"""linattn::attention_backward: the gradients of linattn::attention, and second derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from linattn_core import registry
from linattn_core.autocast import in_full_precision, without_autocast
from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.errors import expected
from linattn_core.operators.gradients import (
    GRADIENTS,
    gradient_results,
    gradient_shapes,
    save_nothing,
    select_wanted,
)
from linattn_core.operators.library import Flat, merge_arguments, pair, register, split_arguments
from linattn_core.operators.transforms import (
    make_transformable,
    refuse_forward_mode,
    refuse_second_derivatives,
)
from linattn_core.reference import chunked
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_core.torch_private import find_observer
from linattn_core.values import restore_saved

_FLAT = Flat(AttentionCall)
_SCHEMA = (
    "(Tensor grad_out, Tensor? grad_s, Tensor? grad_z, Tensor? grad_normalizer, "
    "Tensor out, Tensor normalizer, Tensor? sum_s, Tensor? sum_z, "
    f"{_FLAT.schema}, str backend) -> ({GRADIENTS.schema.replace('?', '')})"
)
# The arguments before those of the call: upstream gradients, and what the forward pass returned.
_UPSTREAM, _OUTPUT = 4, 4
BEFORE_CALL = _UPSTREAM + _OUTPUT


def _run(
    call: AttentionCall,
    output: Output,
    grad_out: Tensor,
    grad_state: LinearAttentionState | None,
    grad_normalizer: Tensor | None,
    backend: str,
) -> Gradients:
    call, output = restore_saved(call, output, grad_out)
    chosen = registry.select(backend, call)
    # A backend that refuses return_normalizer needs no parameter for the normalizer's gradient.
    extra = () if grad_normalizer is None else (grad_normalizer,)
    arguments = (call, output, grad_out, grad_state, *extra)
    return in_full_precision(grad_out.device.type, chosen.attention_backward, *arguments)


def _kernel(*arguments: Any) -> tuple[Tensor, ...]:
    grad_out, grad_s, grad_z, grad_normalizer, out, normalizer, sum_s, sum_z = arguments[
        :BEFORE_CALL
    ]
    call = _FLAT.unpack(arguments[BEFORE_CALL:-1])
    output, grad_state = Output(out, normalizer, pair(sum_s, sum_z)), pair(grad_s, grad_z)
    gradients = _run(call, output, grad_out, grad_state, grad_normalizer, arguments[-1])
    return gradient_results(call, gradients, normalizer)


def _shapes(*arguments: Any) -> tuple[Tensor, ...]:
    return gradient_shapes(_FLAT.unpack(arguments[BEFORE_CALL:-1]), arguments[_UPSTREAM + 1])


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.others = split_arguments((*inputs[:_UPSTREAM], *inputs[BEFORE_CALL:]))
    ctx.save_for_backward(*tensors)


def _autograd(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """Double backward, by differentiating the chunked reference twice.

    `out` and `normalizer` depend on the other inputs, and the reference computes them again. So the
    whole derivative goes to the other inputs, and that of `out` and `normalizer` is None.
    """
    tensors, backend = ctx.saved_tensors, ctx.others[-1]
    call = _FLAT.unpack(merge_arguments(tensors, ctx.others)[_UPSTREAM:-1])
    chosen = registry.select(backend, call)
    if not chosen.double_backward:
        wanted, got = "first derivatives", "a second derivative"
        advice = 'pass backend="reference" to linear_attention'
        raise RuntimeError(expected(f"backend {chosen.name!r}", wanted, got, advice))
    with torch.enable_grad(), without_autocast(call.device.type):
        # New tensors for all arguments, because this is the derivative by each argument alone:
        # grad_out may depend on the queries, and keys and queries may be one tensor.
        alone = [_detach_inputs(x) for x in tensors]
        arguments = merge_arguments(alone, ctx.others)
        call = _FLAT.unpack(arguments[_UPSTREAM:-1])
        first = _reference_gradients(arguments[:_UPSTREAM], call)
        second = _differentiate(first, grads, tensors, alone)
    return (*second[:_UPSTREAM], *(None for _ in range(_OUTPUT)), *second[_UPSTREAM:])


def _detach_inputs(x: Tensor | None) -> Tensor | None:
    """The same numbers as a tensor that depends on no other argument; integers are unchanged."""
    if x is None or not x.is_floating_point():
        return x
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _reference_gradients(
    upstream: Sequence[Tensor | None], call: AttentionCall
) -> list[Tensor | None]:
    """First gradients in the order of `Gradients`, differentiable; sums in float32 or wider."""
    dtype = accumulation_dtype(call.value_dtype)
    query, key, value = (x.to(dtype) for x in (call.query, call.key, call.value))
    wide = call._replace(query=query, key=key, value=value)
    options = {**wide.arguments(), "return_state": True, "return_normalizer": True}
    out, normalizer, state = chunked(**options)
    results = (out.to(call.value_dtype), *state, normalizer)
    inputs = GRADIENTS.pack(select_wanted(call, call))
    # Without a key, the state is the initial one, or constant.
    outputs = [
        (x, grad)
        for x, grad in zip(results, upstream, strict=True)
        if grad is not None and x.requires_grad
    ]
    if not outputs:
        return [None for _ in inputs]
    present = [x for x in inputs if x is not None]
    gradients = iter(
        torch.autograd.grad(
            [x for x, _ in outputs],
            present,
            [g for _, g in outputs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [None if x is None else next(gradients) for x in inputs]


def _differentiate(
    first: Sequence[Tensor | None],
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
    alone: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The derivative of `first` by each tensor that needs one; `grads` are upstream gradients."""
    pairs = [(x, g) for x, g in zip(first, grads, strict=True) if _needs_grad(x)]
    wanted = [
        new for new, x in zip(alone, tensors, strict=True) if new is not None and _needs_grad(x)
    ]
    if not pairs:
        return [torch.zeros_like(x) if _needs_grad(x) else None for x in tensors]
    second = iter(
        torch.autograd.grad(
            [x for x, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(second) if _needs_grad(x) else None for x in tensors]


def _needs_grad(x: Tensor | None) -> TypeGuard[Tensor]:
    return x is not None and x.requires_grad


_operator = register(
    "attention_backward",
    _SCHEMA,
    _kernel,
    _shapes,
    backward=_autograd,
    context=_context,
)


_transformed = make_transformable(
    _kernel,
    save_nothing,
    refuse_second_derivatives,
    packed=BEFORE_CALL + _FLAT.names.index("cu_seqlens"),
)


def attention_backward(
    call: AttentionCall,
    output: Output,
    grad_out: Tensor,
    grad_state: LinearAttentionState | None,
    backend: str,
    grad_normalizer: Tensor | None = None,
) -> Gradients:
    """The gradients of the call; differentiable if grad mode is on."""
    upstream = (grad_out, *(grad_state or (None, None)), grad_normalizer)
    saved = (*output[:2], *(output.state or (None, None)))
    tensors = (*upstream, *saved, *_FLAT.tensors(call))
    observer = find_observer(tensors)
    if observer == "nobody" and not torch.is_grad_enabled():
        return _run(call, output, grad_out, grad_state, grad_normalizer, backend)
    if observer == "forward mode":
        refuse_forward_mode()
    operator = _transformed if observer in ("func", "vmap") else _operator
    query, key, value, s, z, decay = operator(*upstream, *saved, *_FLAT.pack(call), backend)
    return select_wanted(call, Gradients(query, key, value, LinearAttentionState(s, z), decay))
