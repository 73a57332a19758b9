"""Which derivatives there are, once and twice, what they cost, and the refusal of others.

Their values are those of the definition (`test_oracle`). Second derivatives, and those of a step,
are computed from plain operations for every backend, so that they are checked for one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    linear_attention,
    linear_attention_step,
    reference,
)
from linattn_core.registry import find_backend

from .agreement import assert_agree
from .cases import Case, drawing
from .minimum import may_refuse
from .places import widest

SMALL = Case(batch=2, heads=2, queries=4, head_dim=2, value_dim=2)
KINDS = [
    SMALL,
    SMALL.with_(is_causal=False, keys=3),
    SMALL.with_(initial_state=True),
    SMALL.with_(key_lengths=(4, 2)),
    SMALL.with_(batch=1, cu_seqlens=(0, 1, 4), initial_state=True),
]
EXTENDED = [
    SMALL.with_(mask="gaps"),
    SMALL.with_(is_causal=False, keys=3, initial_state=True),
    SMALL.with_(kv_heads=1, is_causal=False, mask="left"),
    SMALL.with_(log_decay="heads", initial_state=True),
    SMALL.with_(
        log_decay="positions", mask="gaps", batch=1, cu_seqlens=(0, 1, 4), initial_state=True
    ),
    SMALL.with_(is_causal=False, keys=0, initial_state=True),
    SMALL.with_(kv_heads=1, log_decay="positions", initial_state=True, mask="left"),
    SMALL.with_(kv_heads=1, batch=1, cu_seqlens=(0, 1, 4), initial_state=True, is_causal=False),
    SMALL.with_(normalize=False, log_decay="positions"),
    SMALL.with_(return_normalizer=True),
    SMALL.with_(return_normalizer=True, normalize=False, is_causal=False),
]


Attend = Callable[..., tuple[Tensor, ...]]


def function(case: Case, form: Callable[..., Any]) -> Attend:
    """A form of the operator as a function of the case's tensors alone."""
    names = list(case.inputs())

    def attend(*inputs: Tensor) -> tuple[Tensor, ...]:
        by_name = dict(zip(names, inputs, strict=True))
        q, k, v = inputs[:3]
        initial = LinearAttentionState(by_name["s"], by_name["z"]) if "s" in by_name else None
        decay = {"log_decay": by_name["log_decay"]} if "log_decay" in by_name else {}
        options = {**case.options(), **decay}
        *out, state = form(q, k, v, initial_state=initial, return_state=True, **options)
        return *out, *state

    return attend


def on(backend: str) -> Callable[..., Any]:
    return functools.partial(linear_attention, backend=backend)


@pytest.mark.parametrize("case", may_refuse([*KINDS, *EXTENDED[:5]]))
def test_a_gradient_alone_is_what_it_is_among_all(case: Case, backend: str) -> None:
    leaves = list(case.with_(dtype=widest(backend)).inputs().values())
    attend = function(case, on(backend))

    def loss(inputs: list[Tensor]) -> Tensor:
        return torch.stack([x.square().sum() for x in attend(*inputs)]).sum()

    for i, expected in enumerate(torch.autograd.grad(loss(leaves), leaves)):
        alone = [x.detach().requires_grad_(i == j) for j, x in enumerate(leaves)]
        (got,) = torch.autograd.grad(loss(alone), [alone[i]])
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("case", [*KINDS, *EXTENDED], ids=str)
def test_second_gradients_are_those_of_the_definition(case: Case) -> None:
    inputs = list(case.with_(dtype=torch.float64).inputs().values())
    assert_second_derivatives_agree(case, "reference", inputs)


def test_second_gradients_or_a_refusal(backend: str) -> None:
    case = SMALL.with_(initial_state=True)
    inputs = list(case.with_(dtype=widest(backend)).inputs().values())
    if find_backend(backend).double_backward:
        assert_second_derivatives_agree(case, backend, inputs)
        return
    out = function(case, on(backend))(*inputs)[0]
    first = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match='backend="reference"'):
        first.sum().backward()


def assert_second_derivatives_agree(case: Case, backend: str, inputs: list[Tensor]) -> None:
    """Ours beside those of the definition in float64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    ours = second_derivatives(function(case, on(backend)), inputs)
    exact = second_derivatives(function(case, reference.quadratic), wide)
    for got, expected in zip(ours, exact, strict=True):
        assert_agree(got, expected.to(got.dtype))


def second_derivatives(attend: Attend, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Derivatives of a random functional of the gradients of another."""
    draw = drawing(2)
    outputs = attend(*inputs)
    total = sum((x.sin() * draw(*x.shape, dtype=x.dtype)).sum() for x in outputs)
    first = torch.autograd.grad(total, inputs, create_graph=True)
    again = sum((x.sin() * draw(*x.shape, dtype=x.dtype)).sum() for x in first)
    return torch.autograd.grad(again, inputs)


def test_second_gradients_in_half_precision_sum_wide() -> None:
    """Normalizers of 1,200 keys of 64 features pass the largest float16."""
    draw = drawing(0)
    half = [draw(1, 1, 1_200, 64, dtype=torch.float16).requires_grad_() for _ in range(3)]

    def second(inputs: list[Tensor]) -> tuple[Tensor, ...]:
        out = linear_attention(*inputs, is_causal=True, backend="reference")
        first = torch.autograd.grad(out[:, :, 1_000:].sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.sum() for x in first), inputs)

    exact = second([x.detach().double().requires_grad_() for x in half])
    for got, expected in zip(second(half), exact, strict=True):
        largest = expected.abs().max()
        assert (got.double() - expected).abs().max() <= 2**-6 * largest


@pytest.mark.parametrize("padded", ["key_lengths", "attn_mask"])
def test_second_gradients_do_not_see_padding(padded: str) -> None:
    tensors = [x.detach() for x in SMALL.with_(queries=6, batch=1).inputs().values()]
    told = torch.tensor([4]) if padded == "key_lengths" else torch.arange(6)[None] < 4

    def second(filled: float) -> list[Tensor]:
        leaves = [x.clone() for x in tensors]
        for x in leaves[1:]:
            x[:, :, 4:] = filled
        leaves = [x.requires_grad_() for x in leaves]
        out = linear_attention(*leaves, is_causal=True, backend="reference", **{padded: told})
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.sin().sum() for x in first), leaves))

    for dirty, clean in zip(second(float("nan")), second(0.0), strict=True):
        assert torch.equal(dirty, clean)


def test_second_gradients_of_no_sequence_and_of_no_keys() -> None:
    """The state of no keys is constant."""
    empty = [torch.zeros(1, 2, 0, 3, requires_grad=True) for _ in range(3)]
    decay = torch.zeros(1, 2, 0, requires_grad=True)
    none = {"cu_seqlens": torch.zeros(1, dtype=torch.int64)}
    for leaves, options in ((empty, none), ([*empty, decay], {"log_decay": decay})):
        out, (s, z) = linear_attention(*empty, is_causal=True, return_state=True, **options)
        total = out.sum() + s.sum() + z.sum()
        first = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
        for x in torch.autograd.grad(
            sum(x.sum() for x in first), leaves, materialize_grads=True, allow_unused=True
        ):
            assert not x.numel()


@pytest.mark.parametrize(
    ("dim", "value_dim", "normalize"), [(2, 3, True), (2, 0, True), (0, 3, False)]
)
def test_step_gradients_twice(dim: int, value_dim: int, normalize: bool) -> None:
    rows = (1, 2, dim), (1, 2, value_dim)
    shapes = (1, 4, dim), *rows, (1, 2, dim, value_dim), (1, 2, dim), (1, 2)
    inputs = [torch.rand(x, dtype=torch.float64, requires_grad=True) for x in shapes]

    def attend(q, k, v, s, z, decay):
        out, state = linear_attention_step(
            q - 0.5, k - 0.5, v, LinearAttentionState(s, z), log_decay=-decay - 0.1,
            enable_gqa=True, normalize=normalize, backend="reference",
        )  # fmt: skip
        return out, *state

    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_only_small_things_are_saved_for_the_backward_pass(backend: str) -> None:
    """Inputs, output and one number a query: nothing of size N x N or N x F x M."""
    tensors = Case(batch=1, heads=1, queries=500, head_dim=16, value_dim=16).inputs()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        linear_attention(
            tensors["query"], tensors["key"], tensors["value"], is_causal=True, backend=backend
        )
    extra = [x for x in saved if all(x.data_ptr() != y.data_ptr() for y in tensors.values())]
    assert sum(x.numel() for x in extra) <= 500 * 16 + 500


def test_forward_mode_is_refused(backend: str) -> None:
    q, ones = torch.randn(1, 2, 5, 3), torch.ones(1, 2, 5, 3)

    def whole(x: Tensor) -> Tensor:
        return linear_attention(x, q, q, is_causal=True, backend=backend)

    def step(x: Tensor) -> Tensor:
        state = LinearAttentionState.zeros(1, 2, 3, 3)
        return linear_attention_step(x, q[:, :, 0], q[:, :, 0], state, backend=backend)[0]

    with pytest.raises(NotImplementedError, match="reverse mode only"):
        torch.func.jvp(whole, (q,), (ones,))
    with pytest.raises(NotImplementedError, match="reverse mode only"):
        torch.func.jvp(step, (q[:, :, 0],), (ones[:, :, 0],))
