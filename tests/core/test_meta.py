"""On the meta device, where no number exists, every call gives its shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    feature_map_names,
    get_feature_map,
    linear_attention,
    linear_attention_step,
)


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta", requires_grad=True)


def differentiate_twice(out: Tensor, *inputs: Tensor) -> None:
    first = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(x.sum() for x in first), inputs, materialize_grads=True)
    for gradients in (first, second):
        assert [x.shape for x in gradients] == [x.shape for x in inputs]
        assert all(x.is_meta for x in gradients)


CALLS: list[dict[str, Any]] = [
    *({"feature_map": x} for x in feature_map_names()),
    {"key_lengths": torch.tensor([6, 9])},
    {"key_lengths": torch.tensor([6, 9], device="meta")},
    {"attn_mask": torch.ones(2, 9, dtype=torch.bool)},
    {"attn_mask": torch.ones(2, 9, dtype=torch.bool, device="meta")},
    {"is_causal": True, "log_decay": torch.tensor([-1.0, -2.0], device="meta")},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_a_call_and_its_derivatives(options: dict[str, Any]) -> None:
    inputs = empty(2, 2, 9, 4), empty(2, 2, 9, 4), empty(2, 2, 9, 3)
    if options.get("feature_map") == "hedgehog":
        options = {"feature_map": get_feature_map("hedgehog", 4).to("meta")}
    out = linear_attention(*inputs, **options)
    assert out.shape == (2, 2, 9, 3)
    differentiate_twice(out, *inputs)


@pytest.mark.parametrize("decay", [None, torch.zeros(2, device="meta")], ids=["plain", "decay"])
def test_a_step_and_its_derivatives(decay: Tensor | None) -> None:
    inputs = empty(2, 2, 4), empty(2, 2, 4), empty(2, 2, 3), empty(2, 2, 4, 3), empty(2, 2, 4)
    state = LinearAttentionState(*inputs[3:])
    out, new = linear_attention_step(*inputs[:3], state, log_decay=decay)
    assert new.s.shape == state.s.shape
    differentiate_twice(out, *inputs)


def test_dtypes_that_differ_are_refused_as_elsewhere() -> None:
    with pytest.raises(TypeError, match="query and value"):
        linear_attention(empty(1, 1, 2, 3), empty(1, 1, 2, 3), empty(1, 1, 2, 3).half())
