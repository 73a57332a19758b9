"""linattn::context_parallel and its gradients: one node each, with all exchanges inside.

Two nodes with exchanges in one backward pass would deadlock where ranks have different losses, and
run them in different orders. The node keeps the name of the group, not the group.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from linattn_core import registry
from linattn_core.calls import AttentionCall, Output
from linattn_core.distributed import agreement
from linattn_core.distributed.parts import Part, zero_states
from linattn_core.distributed.passes import Result, Upstream, backward, forward
from linattn_core.errors import expected
from linattn_core.operators.gradients import (
    GRADIENTS,
    gradient_results,
    gradient_shapes,
    save_nothing,
)
from linattn_core.operators.library import (
    Flat,
    merge_arguments,
    pair,
    register,
    results,
    split_arguments,
)
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_core.torch_private import find_group
from linattn_core.values import (
    cast_saved,
    check_attention_values,
    check_key_lengths,
)

_FLAT = Flat(AttentionCall)
_SAVED = ("Tensor out", "Tensor normalizer", "Tensor before_s", "Tensor before_z", "Tensor sum_s",
          "Tensor sum_z", "Tensor lengths")  # fmt: skip
_SCHEMA = f"({_FLAT.schema}, str backend, str group) -> (Tensor s, Tensor z, {', '.join(_SAVED)})"
_BACKWARD = (
    "(Tensor grad_out, Tensor? grad_s, Tensor? grad_z, Tensor? grad_normalizer, "
    f"{', '.join(_SAVED)}, {_FLAT.schema}, str backend, str group) -> "
    f"({GRADIENTS.schema.replace('?', '')})"
)
_UPSTREAM = 4
_BEFORE = _UPSTREAM + len(_SAVED)


@torch.no_grad()
def _kernel(*arguments: Any) -> tuple[Tensor, ...]:
    *flat, backend, name = arguments
    call, group = _FLAT.unpack(flat), find_group(name)
    lengths = _agree(call, backend, group)
    part = Part.of(lengths, group.rank())
    (out, normalizer, sums), before, final = forward(call, part, group, backend)
    return (
        *results(final, out), out, normalizer, *results(before, out), *results(sums, out),
        torch.tensor(lengths, dtype=torch.int64, device="cpu"),
    )  # fmt: skip


def _agree(call: AttentionCall, backend: str, group: dist.ProcessGroup) -> list[int]:
    """The lengths of the parts, after ranks have compared their calls."""
    try:
        # key_lengths are those of all ranks together
        check_attention_values(call._replace(key_lengths=None))
        registry.select(backend, call._replace(initial_state=zero_states(call)))
    except Exception as error:  # noqa: BLE001 - or the other ranks would wait
        agreement.fail(group, error, call.device)
    settings = agreement.describe(call, backend)
    lengths = agreement.compare(group, call.key_length, settings, call.device)
    # The same on every rank, so no rank fails alone.
    if call.key_lengths is not None and call.batch:
        check_key_lengths(call.key_lengths, sum(lengths))
    return lengths


def _shapes(*arguments: Any) -> tuple[Tensor, ...]:
    *flat, _, name = arguments
    call, ranks = _FLAT.unpack(flat), find_group(name).size()
    out = call.value.new_empty(call.batch, call.heads, call.query_length, call.value_dim)
    normalizer = out.new_empty(out.shape[:3], dtype=accumulation_dtype(out.dtype))
    final = zero_states(call) if call.return_state else None
    before = zero_states(call) if ranks > 1 else None
    sums = None if call.is_causal else zero_states(call)
    return (
        *results(final, out), out, normalizer, *results(before, out), *results(sums, out),
        torch.empty(ranks, dtype=torch.int64, device="cpu"),
    )  # fmt: skip


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.others = split_arguments(inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[2:], *tensors)


def _autograd(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    made, tensors = saved[: len(_SAVED)], saved[len(_SAVED) :]
    arguments = merge_arguments(tensors, ctx.others)
    call = _FLAT.unpack(arguments[:-2])._replace(
        wanted_gradients=_FLAT.fields(ctx.needs_input_grad)
    )
    grad_s, grad_z, grad_out, grad_normalizer = grads[:4]
    if call.return_state:  # ranks add these, so that each has to have some
        like = zero_states(call)
        grad_s = like.s if grad_s is None else grad_s
        grad_z = like.z if grad_z is None else grad_z
    grad_out = torch.zeros_like(made[0]) if grad_out is None else grad_out
    if not call.return_normalizer:
        grad_normalizer = None
    upstream = (grad_out, grad_s, grad_z, grad_normalizer)
    gradients = _differentiate(*upstream, *made, *_FLAT.pack(call), *arguments[-2:])
    by_name = dict(zip(GRADIENTS.names, gradients, strict=True))
    needed = ctx.needs_input_grad
    return tuple(
        by_name.get(name) if need else None
        for name, need in zip((*_FLAT.names, "backend", "group"), needed, strict=True)
    )


@torch.no_grad()
def _backward_kernel(*arguments: Any) -> tuple[Tensor, ...]:
    grad_out, grad_s, grad_z, grad_normalizer = arguments[:_UPSTREAM]
    out, normalizer, before_s, before_z, sum_s, sum_z, lengths = arguments[_UPSTREAM:_BEFORE]
    *flat, backend, name = arguments[_BEFORE:]
    call, group = _FLAT.unpack(flat), find_group(name)
    part = Part.of(lengths.tolist(), group.rank())
    sums = None if call.is_causal else LinearAttentionState(sum_s, sum_z)
    before = LinearAttentionState(before_s, before_z) if group.size() > 1 else None
    call, output = cast_saved(call, Output(out, normalizer, sums), grad_out)
    if before is not None:
        before = before.to(grad_out.device, accumulation_dtype(grad_out.dtype))
    result = Result(output, before, None)
    upstream = Upstream(grad_out, grad_normalizer, pair(grad_s, grad_z))
    gradients = backward(call, part, group, backend, result, upstream)
    return gradient_results(call, gradients, normalizer)


def _backward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    return gradient_shapes(_FLAT.unpack(arguments[_BEFORE:-2]), arguments[_UPSTREAM + 1])


def _refuse(ctx: Any, *_: Any) -> NoReturn:
    wanted, got = "first derivatives", "a second derivative"
    raise RuntimeError(expected("context_parallel_attention", wanted, got, "use one rank"))


if dist.is_available():
    _differentiate = register(
        "context_parallel_backward", _BACKWARD, _backward_kernel, _backward_shapes,
        backward=_refuse, context=save_nothing,
    )  # fmt: skip
    _operator = register(
        "context_parallel", _SCHEMA, _kernel, _shapes, backward=_autograd, context=_context
    )


def context_parallel(
    call: AttentionCall, backend: str, group: str
) -> tuple[Tensor, LinearAttentionState, Tensor]:
    """Output of the own positions, final states of all sequences, and normalizer (with eps)."""
    s, z, out, normalizer, *_ = _operator(*_FLAT.pack(call), backend, group)
    return out, LinearAttentionState(s, z), normalizer
