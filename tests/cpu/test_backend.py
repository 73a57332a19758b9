"""What the backend says of itself, what it refuses, and that it is taken by itself."""

from __future__ import annotations

import pytest
import torch

from linattn_core import backends, explain, linear_attention
from linattn_core.registry import named

from .calls import draw


def test_auto_asks_it_first() -> None:
    query, key, value, _ = draw(1, 1, 4, 4)

    assert next(name for name, x in explain(query, key, value).items() if x == "accepts") == "cpu"
    assert backends().index("cpu") < backends().index("reference")


def test_other_devices_are_refused_with_the_reason() -> None:
    query, key, value, _ = (x.to("meta") for x in draw(1, 1, 4, 4))

    assert explain(query, key, value)["cpu"] == (
        "it runs on CPU tensors and these are on meta; move them to the CPU."
    )


def test_it_says_what_it_is() -> None:
    assert "threads by" in named("cpu").description


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 64, 65])
def test_a_gradient_without_strides_is_read_in_place(length: int) -> None:
    """sum() hands down one number for all positions."""
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
    """2,145 features a head: the state is far larger than the caches' innermost."""
    query, key, value, _ = draw(1, 1, 50, 64)

    ours = linear_attention(
        query, key, value, is_causal=True, feature_map="polynomial", backend="cpu"
    )
    theirs = linear_attention(
        query.double(), key.double(), value.double(),
        is_causal=True, feature_map="polynomial", backend="reference",
    )  # fmt: skip

    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
