"""The attention operators that the cases compare, each called as its own users call it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F

import linattn_core
from benchmarks import oracle, peers
from benchmarks.registry import Absent, Method, NotMeasured, Settings

LINEAR = "linear (torch)"
SDPA = "softmax SDPA"
FAST_TRANSFORMERS = peers.FAST_TRANSFORMERS
FAST_TRANSFORMERS_KERNEL = "fast-transformers, kernel alone"

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One problem: batch, heads, length, and the width of queries, keys and values."""

    length: int
    batch: int = 1
    heads: int = 8
    width: int = 64

    def operations(self, backward: bool) -> float:
        """The least that causal linear attention needs: 4 N D M a head, 10 with the backward."""
        each = 10 if backward else 4
        return each * self.batch * self.heads * self.length * self.width**2


@dataclasses.dataclass(frozen=True)
class Attention:
    """One operator.

    Args:
        call: takes query, key, value in the operator's own layout.
        rows: the float64 truth.
        length_first: the layout is (B, N, H, D) instead of (B, H, N, D).
        linear: the work grows with N, so that its operations can be held against the GEMM rate.
    """

    name: str
    call: Call
    rows: oracle.Rows
    length_first: bool = False
    linear: bool = True


def attention(name: str, length: int, settings: Settings) -> Attention:
    """Returns the operator of that name, made ready for sequences of `length`.

    Raises:
        NotMeasured: when it belongs to a peer that is not here.
    """
    if name == LINEAR:
        return Attention(name, _linear, oracle.linear_rows)
    if name == SDPA:
        return Attention(name, _sdpa, oracle.softmax_rows, linear=False)
    library = peers.fast_transformers(settings)
    if name == FAST_TRANSFORMERS_KERNEL:
        return Attention(name, library.causal_dot_product, oracle.product_rows)
    module = library.CausalLinearAttention(None)  # elu + 1 ignores the query dimension
    # Its encoder makes the masks once for all layers, so they stay outside the timed call.
    causal = library.TriangularCausalMask(length)
    lengths = library.LengthMask(torch.tensor([length]))

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module(query, key, value, causal, lengths, lengths)
        return out

    return Attention(name, call, oracle.linear_rows, length_first=True)


def _linear(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = linattn_core.linear_attention(
        query, key, value, is_causal=True, feature_map="elu", backend="reference"
    )
    return out


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def inputs(sizes: Sizes, *, length_first: bool, backward: bool) -> list[torch.Tensor]:
    """Returns query, key and value; the same numbers in either layout."""
    generator = torch.Generator().manual_seed(0)
    shape = (sizes.batch, sizes.heads, sizes.length, sizes.width)
    made = [torch.randn(shape, generator=generator) for _ in range(3)]
    if length_first:
        made = [tensor.transpose(1, 2).contiguous() for tensor in made]
    return [tensor.requires_grad_(backward) for tensor in made]


def method(
    name: str,
    sizes: Sizes,
    *,
    backward: bool,
    settings: Settings,
    per_position: bool = False,
) -> Method | Absent:
    """Returns the operator as a method of a case whose unit is the call, or the position."""
    try:
        operator = attention(name, sizes.length, settings)
    except NotMeasured as reason:
        return Absent(name, str(reason))
    tensors = inputs(sizes, length_first=operator.length_first, backward=backward)
    return Method(
        name,
        check=lambda: _check(operator, tensors),
        run=call_on(operator, tensors, torch.ones_like(tensors[2]) if backward else None),
        units=sizes.length if per_position else 1,
        operations=sizes.operations(backward) if operator.linear else 0,
    )


def call_on(
    operator: Attention, tensors: list[torch.Tensor], upstream: torch.Tensor | None = None
) -> Callable[[], object]:
    """Returns the measured call: forward, and backward where the inputs want gradients.

    Args:
        upstream: the gradient that a layer above would hand down, in the operator's layout;
            without it the call makes its own, which then counts as memory of the call.
    """
    if not tensors[0].requires_grad:
        return lambda: operator.call(*tensors)

    def forward_and_backward() -> object:
        out = operator.call(*tensors)
        given = torch.ones_like(out) if upstream is None else upstream
        return torch.autograd.grad(out, tensors, given)

    return forward_and_backward


def _check(operator: Attention, tensors: list[torch.Tensor]) -> str | None:
    """Compares outputs and gradients at full length with the oracle for a sample of rows."""
    backward = tensors[0].requires_grad
    rows = oracle.sampled_rows(tensors[0].shape[1 if operator.length_first else 2])
    names = ("the output", "the query gradient", "the key gradient", "the value gradient")
    actual = _rows_and_gradients(
        lambda q, k, v: _heads_first(operator, operator.call(q, k, v))[:, :, rows],
        tensors,
        backward,
    )
    exact = [_heads_first(operator, tensor.detach()).double() for tensor in tensors]
    expected = _rows_and_gradients(
        lambda q, k, v: operator.rows(q, k, v, rows),
        [tensor.requires_grad_(backward) for tensor in exact],
        backward,
    )
    ours = (actual[0], *(_heads_first(operator, gradient) for gradient in actual[1:]))
    return oracle.disagreement(ours, expected, names[: len(ours)])


def _rows_and_gradients(
    call: Call, tensors: list[torch.Tensor], backward: bool
) -> tuple[torch.Tensor, ...]:
    out = call(*tensors)
    if not backward:
        return (out,)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return (out.detach(), *torch.autograd.grad(out, tensors, upstream.to(out.dtype)))


def _heads_first(operator: Attention, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(1, 2) if operator.length_first else tensor
