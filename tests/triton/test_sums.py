"""The sums of calls in half precision, which are those of float32."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linattn_core import linear_attention, linear_attention_state
from linattn_core.registry import find_backend
from tests.contract.places import device_of

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _usable() -> None:
    reason = find_backend("triton").unusable()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_decayed_state_is_exact(dtype: torch.dtype) -> None:
    with torch.device(device_of("triton") or "cpu"):
        key, value = torch.randn(2, 1, 2, 70, 4).to(dtype)
        decay = torch.full((2,), -0.1)
        options = {"is_causal": True, "log_decay": decay, "return_state": True}
        _, state = linear_attention(key, key, value, backend="triton", **options)
    exact = linear_attention_state(
        key.double(), value.double(), log_decay=decay, backend="reference"
    )

    assert_close(tuple(state), tuple(x.float() for x in exact))
