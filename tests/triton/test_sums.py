"""Sums are as exact as those of float32, in half precision and over long sequences, too."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention, linear_attention_state
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


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_a_long_sum_loses_nothing(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are added to a state so large that its last place is a tenth of what each adds."""
    launches = pytest.importorskip("linattn_triton.launches")
    monkeypatch.setattr(launches, "LONG", 1_000)
    length, before = 1_100, 2.0**25
    with torch.device(device_of("triton") or "cpu"):
        key = torch.zeros(1, 1, length, 1, dtype=dtype)
        value = torch.linspace(0.51, 0.97, 9).to(dtype).expand(1, 1, length, 9)
        large = LinearAttentionState(
            before * value[:, :, :1].float(), torch.full((1, 1, 1), before)
        )
        _, state = linear_attention(
            key, key, value, is_causal=True, initial_state=large, return_state=True,
            backend="triton",
        )  # fmt: skip

    assert_close(state.s - large.s, length * value[:, :, :1].float(), rtol=4e-3, atol=0)
