"""The description of the backend, its refusals, and that "auto" chooses it."""

from __future__ import annotations

import pytest
import torch

from linattn_core import (
    LinearAttentionState,
    backends,
    explain,
    linear_attention,
    linear_attention_step,
)

from .calls import draw, run


def test_auto_asks_it_first() -> None:
    query, key, value, _ = draw(1, 1, 4, 4)

    assert next(name for name, x in explain(query, key, value).items() if x == "accepts") == "cpu"
    assert backends().index("cpu") < backends().index("reference")


def test_other_devices_are_refused_with_the_reason() -> None:
    query, key, value, _ = (x.to("meta") for x in draw(1, 1, 4, 4))

    assert "on meta" in explain(query, key, value)["cpu"]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 64, 65])
def test_a_gradient_without_strides_is_read_in_place(length: int) -> None:
    """The upstream gradient of sum() is one number, expanded to all positions."""
    leaves = [x.requires_grad_() for x in draw(1, 2, length, 6)[:3]]

    ours = torch.autograd.grad(
        linear_attention(*leaves, is_causal=True, backend="cpu").sum(), leaves
    )
    theirs = torch.autograd.grad(
        linear_attention(*leaves, is_causal=True, backend="reference").sum(), leaves
    )

    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_large_map_outside_the_kernel() -> None:
    """2,145 features per head: the state is far larger than the L1 cache."""
    query, key, value, _ = draw(1, 1, 50, 64)

    ours = linear_attention(
        query, key, value, is_causal=True, feature_map="polynomial", backend="cpu"
    )
    theirs = linear_attention(
        query.double(), key.double(), value.double(),
        is_causal=True, feature_map="polynomial", backend="reference",
    )  # fmt: skip

    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_autograd_notices_a_step_in_place() -> None:
    q, k, v = torch.randn(2, 3, 8, requires_grad=True), torch.randn(2, 3, 8), torch.randn(2, 3, 5)
    state = LinearAttentionState(torch.randn(2, 3, 8, 5), torch.rand(2, 3, 8) + 1)
    out, state = linear_attention_step(q, k, v, state, backend="cpu")
    with torch.no_grad():
        linear_attention_step(q.detach(), k, v, state, inplace=True, backend="cpu")

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.pow(2).sum().backward()


def test_a_head_dim_of_zero_gives_zeros(instruction_set: str) -> None:
    """Without features there is nothing to sum; memory of an earlier call must not be read."""
    run(draw(1, 2, 200, 16), is_causal=True)
    query, value = torch.zeros(1, 2, 200, 0), torch.randn(1, 2, 200, 16)

    out = linear_attention(query, query, value, is_causal=True, backend="cpu")

    assert torch.equal(out, torch.zeros_like(out))
