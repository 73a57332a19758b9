"""torch's counter knows the operators: S is summed once, and read by each query."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step

PRODUCT = 2 * 3 * 5  # of F and M, a multiplication and an addition each


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_a_sequence_and_its_gradients(is_causal: bool, feature_map: str) -> None:
    query = torch.randn(2, 4, 7, 3, requires_grad=True)
    key, value = torch.randn(2, 2, 7, 3), torch.randn(2, 2, 7, 5)
    reads, sums = 2 * 4 * 7 * PRODUCT, 2 * 2 * 7 * PRODUCT
    with FlopCounterMode(display=False) as counter:
        out = linear_attention(
            query, key, value, is_causal=is_causal, feature_map=feature_map, enable_gqa=True
        )
        forward = counter.get_total_flops()
        out.sum().backward()
    assert forward == reads + sums
    assert counter.get_total_flops() == forward + 2 * reads + (3 if is_causal else 2) * sums


@pytest.mark.parametrize("inplace", [True, False])
def test_a_step_and_a_call_without_gradients(inplace: bool) -> None:
    x, state = torch.randn(2, 4, 3), LinearAttentionState.zeros(2, 4, 3, 5)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        linear_attention_step(x, x, torch.randn(2, 4, 5), state, inplace=inplace)
        assert counter.get_total_flops() == 2 * 2 * 4 * PRODUCT
        linear_attention(x[None], x[None], torch.randn(1, 2, 4, 5))
    assert counter.get_total_flops() == 2 * 2 * 4 * PRODUCT + 2 * 2 * 4 * PRODUCT
