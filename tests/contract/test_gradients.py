"""Gradients by finite differences, twice; or a refusal that says so.

Where a backend takes no float64, rounding drowns finite differences: there its derivatives are held
to those of the definition in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

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

from .agreement import assert_agree, assert_within_budget
from .cases import Case, drawing
from .places import widest

KINDS = [
    Case(batch=1, heads=2, queries=5, head_dim=2, value_dim=3),
    Case(batch=1, heads=2, queries=3, keys=4, head_dim=2, value_dim=3, is_causal=False),
    Case(batch=1, heads=1, queries=5, head_dim=2, value_dim=2, initial_state=True),
    Case(batch=2, heads=1, queries=4, head_dim=2, value_dim=2, key_lengths=(4, 2)),
    Case(batch=1, heads=1, queries=5, head_dim=2, value_dim=2, cu_seqlens=(0, 2, 5)),
]


def function(case: Case, backend: str) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    tensors = case.with_(dtype=widest(backend)).inputs()

    def attend(*inputs: Tensor) -> tuple[Tensor, ...]:
        by_name = dict(zip(tensors, inputs, strict=True))
        q, k, v = inputs[:3]
        initial = LinearAttentionState(by_name["s"], by_name["z"]) if "s" in by_name else None
        decay = {"log_decay": by_name["log_decay"]} if "log_decay" in by_name else {}
        *out, state = linear_attention(
            q, k, v,
            initial_state=initial, return_state=True, backend=backend, **case.options(), **decay,
        )  # fmt: skip
        return *out, *state

    return attend, list(tensors.values())


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_a_gradient_alone_is_what_it_is_among_all(case: Case, backend: str) -> None:
    attend, leaves = function(case, backend)

    def loss(inputs: list[Tensor]) -> Tensor:
        return torch.stack([x.square().sum() for x in attend(*inputs)]).sum()

    for i, expected in enumerate(torch.autograd.grad(loss(leaves), leaves)):
        alone = [x.detach().requires_grad_(i == j) for j, x in enumerate(leaves)]
        (got,) = torch.autograd.grad(loss(alone), [alone[i]])
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_gradients(case: Case, backend: str) -> None:
    if widest(backend) != torch.float64:
        assert_within_budget(case, backend)
        return
    assert torch.autograd.gradcheck(*function(case, backend))


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_second_gradients_or_a_refusal(case: Case, backend: str) -> None:
    attend, inputs = function(case, backend)
    if find_backend(backend).double_backward and widest(backend) == torch.float64:
        assert torch.autograd.gradgradcheck(attend, inputs)
        return
    if find_backend(backend).double_backward:
        assert_second_derivatives_agree(attend, function(case, "reference")[0], inputs)
        return
    first = torch.autograd.grad(attend(*inputs)[0].sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match='backend="reference"'):
        first.sum().backward()


def assert_second_derivatives_agree(
    ours: Callable[..., tuple[Tensor, ...]],
    exact: Callable[..., tuple[Tensor, ...]],
    inputs: list[Tensor],
) -> None:
    """Derivatives of a random functional of the gradients of another, ours beside float64's."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    both = second_derivatives(ours, inputs), second_derivatives(exact, wide)
    for got, expected in zip(*both, strict=True):
        assert_agree(got, expected.to(got.dtype))


def second_derivatives(
    attend: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor]
) -> tuple[Tensor, ...]:
    draw = drawing(2)
    outputs = attend(*inputs)
    total = sum((x.sin() * draw(*x.shape, dtype=x.dtype)).sum() for x in outputs)
    first = torch.autograd.grad(total, inputs, create_graph=True)
    again = sum((x * draw(*x.shape, dtype=x.dtype)).sum() for x in first)
    return torch.autograd.grad(again, inputs)


def require_second_derivatives(backend: str) -> None:
    """Skips the test where a backend refuses them, which another test asserts."""
    if not find_backend(backend).double_backward:
        pytest.skip(f"{backend} has no second derivatives")


def test_second_gradients_in_half_precision_sum_wide(backend: str) -> None:
    """Normalizers of 1,200 keys of 64 features pass the largest float16."""
    require_second_derivatives(backend)
    draw = drawing(0)
    half = [draw(1, 1, 1_200, 64, dtype=torch.float16).requires_grad_() for _ in range(3)]

    def second(inputs: list[Tensor], backend: str) -> tuple[Tensor, ...]:
        out = linear_attention(*inputs, is_causal=True, backend=backend)
        first = torch.autograd.grad(out[:, :, 1_000:].sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.sum() for x in first), inputs)

    exact = second([x.detach().double().requires_grad_() for x in half], "reference")
    for got, expected in zip(second(half, backend), exact, strict=True):
        largest = expected.abs().max()
        assert (got.double() - expected).abs().max() <= 2**-6 * largest


@pytest.mark.parametrize("padded", ["key_lengths", "attn_mask"])
def test_second_gradients_do_not_see_padding(padded: str, backend: str) -> None:
    require_second_derivatives(backend)
    case = Case(batch=1, heads=1, queries=6, head_dim=2, value_dim=2)
    tensors = [x.detach().to(widest(backend)) for x in case.inputs().values()]
    mask = {"key_lengths": torch.tensor([4])} if padded == "key_lengths" else {}
    mask = mask or {"attn_mask": torch.arange(6)[None] < 4}

    def second(filled: float) -> list[Tensor]:
        inputs = [x.clone() for x in tensors]
        for x in inputs[1:]:
            x[:, :, 4:] = filled
        leaves = [x.requires_grad_() for x in inputs]
        out = linear_attention(*leaves, is_causal=True, backend=backend, **mask)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.sin().sum() for x in first), leaves))

    for dirty, clean in zip(second(float("nan")), second(0.0), strict=True):
        assert torch.equal(dirty, clean)


def test_second_gradients_of_no_sequence(backend: str) -> None:
    require_second_derivatives(backend)
    empty = [torch.zeros(1, 2, 0, 3, dtype=widest(backend), requires_grad=True) for _ in range(3)]
    none = torch.zeros(1, dtype=torch.int64)
    out = linear_attention(*empty, is_causal=True, cu_seqlens=none, backend=backend)
    first = torch.autograd.grad(out.sum(), empty, create_graph=True)
    for x in torch.autograd.grad(sum(x.sum() for x in first), empty):
        assert x.shape == (1, 2, 0, 3)


@pytest.mark.parametrize("is_causal", [True, False])
def test_second_gradients_where_everything_depends_on_one_tensor(
    is_causal: bool, backend: str
) -> None:
    """The upstream gradient is a function of the output, and query, key and value are one."""
    if not find_backend(backend).double_backward:
        pytest.skip("computes first derivatives only")
    x = torch.randn(1, 2, 5, 3, dtype=widest(backend), requires_grad=True)
    direction = torch.randn_like(x)

    def product(attend: Callable[..., Tensor]) -> Tensor:
        out = attend(x, x, x * 2, is_causal=is_causal)
        (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad((first * direction).sum(), x)[0]

    def definition(*tensors: Tensor, is_causal: bool) -> Tensor:
        return reference.quadratic(*tensors, is_causal=is_causal)

    def attend(*tensors: Tensor, is_causal: bool) -> Tensor:
        return linear_attention(*tensors, is_causal=is_causal, backend=backend)

    assert_agree(product(attend), product(definition))


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


def test_step_gradients_twice(backend: str) -> None:
    shapes = (2, 1, 2), (2, 1, 2), (2, 1, 3), (2, 1, 2, 3), (2, 1, 2)
    inputs = [torch.rand(x, dtype=widest(backend), requires_grad=True) for x in shapes]

    def attend(
        q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor, backend: str = backend
    ) -> tuple[Tensor, ...]:
        out, state = linear_attention_step(
            q - 0.5, k - 0.5, v, LinearAttentionState(s, z), backend=backend
        )
        return out, *state

    if widest(backend) != torch.float64:
        exact = functools.partial(attend, backend="reference")
        assert_second_derivatives_agree(attend, exact, inputs)
        return
    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_gradients_of_some_inputs_only(backend: str) -> None:
    tensors = Case(queries=70).inputs()
    q, k, v = (tensors[x] for x in ("query", "key", "value"))
    linear_attention(q, k, v, is_causal=True, backend=backend).sum().backward()
    alone = v.detach().clone().requires_grad_()
    out = linear_attention(q.detach(), k.detach(), alone, is_causal=True, backend=backend)
    out.sum().backward()
    assert torch.equal(alone.grad, v.grad)


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


@pytest.mark.parametrize("name", ["reference", "auto"])
def test_second_derivatives_of_no_keys(name: str) -> None:
    """Their state is constant."""
    q, v = torch.randn(1, 1, 0, 4), torch.randn(1, 1, 0, 5, requires_grad=True)
    g = torch.zeros(1, 1, 0, requires_grad=True)
    out, (s, z) = linear_attention(
        q, q, v, is_causal=True, log_decay=g, return_state=True, backend=name
    )
    first = torch.autograd.grad(out.sum() + s.sum() + z.sum(), [v, g], create_graph=True)
    sum(x.sum() for x in first).backward()
    assert v.grad.numel() == g.grad.numel() == 0
