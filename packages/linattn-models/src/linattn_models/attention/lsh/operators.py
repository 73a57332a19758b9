"""LSH attention as two torch operators, so that torch.compile sees one node per pass.

linattn_models::lsh_attention            forward; also returns what the backward pass needs
linattn_models::lsh_attention_backward   the gradients
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linattn_core.autocast import without_autocast
from linattn_core.errors import expected
from linattn_core.state import accumulation_dtype
from linattn_models.attention.lsh.hashing import sort_positions
from linattn_models.attention.lsh.passes import Saved, attend, differentiate
from linattn_models.attention.lsh.windows import Layout, Round, pad_rows
from linattn_models.basics.packing import past_lengths

_library = torch.library.Library("linattn_models", "DEF")


def _define(name: str, schema: str, kernel: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linattn_models::{name}", shapes, lib=_library)


def _forward(
    query: Tensor,
    value: Tensor,
    rotations: Tensor,
    lengths: Tensor | None,
    chunk: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    with without_autocast(query.device.type):
        layout = _layout(query, lengths, chunk, causal)
        orders = _orders(layout, query, rotations, lengths)
        q, v = (_rows(x, layout, lengths) for x in (query, value))
        out, denominator = attend(layout, _rounds(layout, orders), q, v)
        return _unpad(out, layout, value), denominator, orders.int()


def _forward_shapes(
    query: Tensor,
    value: Tensor,
    rotations: Tensor,
    lengths: Tensor | None,
    chunk: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, length, _ = query.shape
    groups, positions = batch * heads, _positions(length, chunk)
    return (
        value.new_empty(value.shape),
        query.new_empty(groups * positions, 1, dtype=accumulation_dtype(query.dtype)),
        query.new_empty(rotations.shape[0], groups, positions, dtype=torch.int32),
    )


def _backward(
    grad_out: Tensor,
    query: Tensor,
    value: Tensor,
    out: Tensor,
    denominator: Tensor,
    orders: Tensor,
    lengths: Tensor | None,
    chunk: int,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    with without_autocast(query.device.type):
        layout = _layout(query, lengths, chunk, causal)
        rows = (_rows(x, layout, lengths) for x in (query, value, out, grad_out))
        saved = Saved(denominator, *rows)
        grad_query, grad_value = differentiate(layout, _rounds(layout, orders.long()), saved)
        return _unpad(grad_query, layout, query), _unpad(grad_value, layout, value)


def _backward_shapes(
    grad_out: Tensor, query: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    query, value, _, lengths, ctx.chunk, ctx.causal = inputs
    ctx.save_for_backward(query, value, *output, lengths)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _autograd(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    grads: tuple[Tensor | None, ...] = (None, None)
    if grad_out is not None:
        grads = torch.ops.linattn_models.lsh_attention_backward(
            grad_out, *ctx.saved_tensors, ctx.chunk, ctx.causal
        )
    return (*grads, None, None, None, None)


def _refuse_second_derivatives(ctx: Any, *grads: Tensor) -> None:
    advice = "use linear or softmax attention for it"
    wanted, got = "first derivatives", "a second derivative"
    raise RuntimeError(expected("lsh_attention", wanted, got, advice))


_define(
    "lsh_attention",
    "(Tensor query, Tensor value, Tensor rotations, Tensor? lengths, int chunk, bool causal)"
    " -> (Tensor out, Tensor denominator, Tensor orders)",
    _forward,
    _forward_shapes,
)
_define(
    "lsh_attention_backward",
    "(Tensor grad_out, Tensor query, Tensor value, Tensor out, Tensor denominator, Tensor orders, "
    "Tensor? lengths, int chunk, bool causal) -> (Tensor query, Tensor value)",
    _backward,
    _backward_shapes,
)
torch.library.register_autograd(
    "linattn_models::lsh_attention", _autograd, setup_context=_keep, lib=_library
)
torch.library.register_autograd(
    "linattn_models::lsh_attention_backward", _refuse_second_derivatives, lib=_library
)

lsh_attention_operator = torch.ops.linattn_models.lsh_attention


def _rows(x: Tensor, layout: Layout, lengths: Tensor | None) -> Tensor:
    """(B, H, N, X) -> (G P, X) in float32 or float64; padding becomes 0."""
    rows = pad_rows(x, layout.positions).to(accumulation_dtype(x.dtype))
    if lengths is None:
        return rows
    places = torch.arange(layout.positions, device=x.device)
    padding = places >= layout.lengths.unsqueeze(1)  # (G, P)
    # A weight of 0 is not enough: padding may hold NaN, and 0 times NaN is NaN.
    return rows.masked_fill(padding.view(-1, 1), 0)


def _positions(length: int, chunk: int) -> int:
    """The length rounded up to whole chunks."""
    return -(-length // chunk) * chunk


def _layout(query: Tensor, lengths: Tensor | None, chunk: int, causal: bool) -> Layout:
    batch, heads, length, _ = query.shape
    if lengths is None:
        existing = torch.full((batch * heads,), length, dtype=torch.int32, device=query.device)
    else:
        existing = lengths.int().repeat_interleave(heads)
    return Layout(batch * heads, _positions(length, chunk), chunk, causal, existing)


def _orders(layout: Layout, query: Tensor, rotations: Tensor, lengths: Tensor | None) -> Tensor:
    """(rounds, G, P) int64: the positions of every head, sorted as in each round."""
    length = query.shape[2]
    padding = None if lengths is None else past_lengths(lengths, length)
    orders = torch.stack([sort_positions(query, rotation, padding) for rotation in rotations])
    past_end = torch.arange(length, layout.positions, device=query.device)
    return torch.cat([orders, past_end.expand(*orders.shape[:2], -1)], 2)


def _rounds(layout: Layout, orders: Tensor) -> list[Round]:
    """The rounds, each with the chunk numbers of all earlier rounds."""
    numbers = torch.empty(orders.shape, dtype=torch.int32, device=orders.device)
    rounds = []
    for index, order in enumerate(orders):
        rounds.append(Round(layout, order, numbers[:index]))
        if index + 1 < len(orders):
            numbers[index] = rounds[index].chunk_numbers()
    return rounds


def _unpad(rows: Tensor, layout: Layout, like: Tensor) -> Tensor:
    """(G P, X) -> (B, H, N, X), the shape and dtype of `like`, without the padding."""
    batch, heads, length, width = like.shape
    whole = rows.view(batch, heads, layout.positions, width)
    return whole[:, :, :length].contiguous().to(like.dtype)
