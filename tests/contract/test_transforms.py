"""The operator and the step under torch.func: what a loop of ordinary calls gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step

from .agreement import assert_agree
from .cases import drawing
from .places import widest

pytestmark = pytest.mark.may_refuse


def inputs(backend: str, batch: int = 3) -> list[Tensor]:
    draw = drawing(0)
    return [draw(batch, 2, 6, d, dtype=widest(backend)) for d in (4, 4, 3)]


def attending(backend: str, **options: object) -> Callable[..., Tensor]:
    options = on_the_device(options)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, state = linear_attention(q, k, v, return_state=True, backend=backend, **options)
        return out.sin().sum() + state.s.cos().sum()

    return attend


def on_the_device(options: dict[str, object]) -> dict[str, object]:
    """Options, whose tensors were made on the CPU, on the device of the backend under test."""
    device = torch.get_default_device()
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}


OPTIONS = [
    {"is_causal": True},
    {"is_causal": False},
    {"is_causal": True, "attn_mask": torch.arange(6) % 3 > 0},
    {"is_causal": True, "log_decay": torch.tensor([-0.5, -2.0])},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: "-".join(x))
def test_grad_and_vjp(options: dict[str, object], backend: str) -> None:
    q, k, v = inputs(backend)
    attend = attending(backend, **options)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(attend(*leaves), leaves)
    value, pull = torch.func.vjp(attend, q, k, v)
    pulled = pull(torch.ones_like(value))
    for gradients in (torch.func.grad(attend, (0, 1, 2))(q, k, v), pulled):
        for got, wanted in zip(gradients, expected, strict=True):
            assert_agree(got, wanted)


@pytest.mark.parametrize("is_causal", [True, False])
def test_sums_stay_wide_under_autocast(is_causal: bool, backend: str) -> None:
    """Over more than one chunk, and the state that is returned."""
    draw = drawing(0)
    q, k, v = (draw(2, 2, 150, 8, dtype=torch.float32) for _ in range(3))
    attend = attending(backend, is_causal=is_causal)
    with torch.autocast(q.device.type, dtype=torch.bfloat16):
        got = torch.func.grad(attend, (0, 1, 2))(q, k, v)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        expected = torch.autograd.grad(attend(*leaves), leaves)
    for x, wanted in zip(got, expected, strict=True):
        assert_agree(x, wanted)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: "-".join(x))
def test_vmap_is_a_loop(options: dict[str, object], backend: str) -> None:
    """Mapped over a new dimension, and one tensor not at all."""
    q, k, v = inputs(backend)
    others = torch.stack((k, 2 * k), 1)  # mapped in dimension 1
    options = on_the_device(options)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, backend=backend, **options)

    got = torch.func.vmap(attend, in_dims=(None, 1, None))(q, others, v)
    expected = torch.stack([attend(q, x, v) for x in others.unbind(1)])
    assert_agree(got, expected)


SHAPES = {"attn_mask": (3, 6), "heads": (2,), "positions": (3, 2, 6)}


@pytest.mark.parametrize("kind", SHAPES)
def test_vmap_over_masks_and_decays(kind: str, backend: str) -> None:
    """Each mask, or decay of either shape, with the same tensors."""
    q, k, v = inputs(backend)
    drawn = drawing(1)(4, *SHAPES[kind], dtype=q.dtype)
    name = kind if kind == "attn_mask" else "log_decay"
    stacked = drawn > -0.5 if kind == "attn_mask" else -drawn.abs()

    def attend(x: Tensor) -> Tensor:
        return linear_attention(q, k, v, is_causal=True, backend=backend, **{name: x})

    expected = torch.stack([attend(x) for x in stacked])
    assert_agree(torch.func.vmap(attend)(stacked), expected)


def test_vmap_over_nothing(backend: str) -> None:
    empty = [x.new_empty(0, *x.shape) for x in inputs(backend)]
    out = torch.func.vmap(lambda q, k, v: linear_attention(q, k, v, backend=backend))(*empty)
    assert out.shape == (0, 3, 2, 6, 3)


def test_gradients_of_each_sample(backend: str) -> None:
    q, k, v = inputs(backend)
    attend = attending(backend, is_causal=True)
    each = torch.func.vmap(torch.func.grad(lambda *x: attend(*(y[None] for y in x))))(q, k, v)
    loop = [torch.func.grad(attend)(*(x[i : i + 1] for x in (q, k, v))) for i in range(3)]
    assert_agree(each, torch.cat(loop))


def test_a_step_mapped_and_differentiated(backend: str) -> None:
    q, k, v = (x[:, :, 0] for x in inputs(backend))
    s, z = torch.ones(3, 2, 4, 3, dtype=q.dtype), torch.ones(3, 2, 4, dtype=q.dtype)

    def step(q: Tensor, s: Tensor) -> Tensor:
        out, _ = linear_attention_step(q, k, v, LinearAttentionState(s, z), backend=backend)
        return out

    queries = torch.stack((q, 3 * q))
    got = torch.func.vmap(step, in_dims=(0, None))(queries, s)
    assert_agree(got, torch.stack([step(x, s) for x in queries]))
    jacobian = torch.func.jacrev(lambda x: step(x, s).sum((0, 1)))(q)
    leaf = q.clone().requires_grad_()
    rows = [torch.autograd.grad(x, leaf, retain_graph=True)[0] for x in step(leaf, s).sum((0, 1))]
    assert_agree(jacobian, torch.stack(rows))


def test_what_transforms_cannot_do_is_said(backend: str) -> None:
    q, k, v = inputs(backend, batch=1)
    bounds = torch.tensor([0, 2, 6])

    def packed(x: Tensor) -> Tensor:
        return linear_attention(x, k, v, cu_seqlens=bounds, backend=backend)

    with pytest.raises(ValueError, match="vmap: expected sequences that are not packed"):
        torch.func.vmap(packed)(torch.stack((q, q)))
    attend = attending(backend, is_causal=True)
    with pytest.raises(
        NotImplementedError, match=r"first derivatives, got a second one; .*chunked"
    ):
        torch.func.grad(lambda x: torch.func.grad(attend)(x, k, v).sum())(q)


def test_a_step_in_place_is_not_mapped(backend: str) -> None:
    q, k, v = (x[:, :, 0] for x in inputs(backend))

    def step(x: Tensor) -> Tensor:
        state = LinearAttentionState.zeros(3, 2, 4, 3, dtype=q.dtype)
        return linear_attention_step(x, k, v, state, inplace=True, backend=backend)[0]

    with pytest.raises(ValueError, match="vmap: expected a step that returns its state"):
        torch.func.vmap(step)(torch.stack((q, q)))


@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.hessian])
def test_forward_mode_over_a_transform_is_refused(transform: Any, backend: str) -> None:
    """Also where a reverse-mode transform hides the tangents."""
    q, k, v = inputs(backend)
    attend = attending(backend, is_causal=True)
    with pytest.raises(NotImplementedError, match="reverse mode only, got a forward-mode one"):
        transform(lambda x: attend(x, k, v))(q)
