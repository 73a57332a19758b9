"""Causal calls with few heads are cut into segments, and give what whole sequences give."""

from __future__ import annotations

import pytest
import torch

from linattn_core.registry import find_backend
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case

launches = pytest.importorskip("linattn_triton.launches", reason="triton is not installed")

ONE = Case(batch=1, heads=1, queries=260, head_dim=8, value_dim=8)
CASES = [
    ONE.with_(initial_state=True),
    ONE.with_(batch=2, heads=2, kv_heads=1, key_lengths=(200, 33), mask="gaps"),
    ONE.with_(log_decay="positions", initial_state=True, mask="gaps"),
    ONE.with_(
        heads=2, kv_heads=1, log_decay="resets", cu_seqlens=(0, 0, 20, 230, 260), initial_state=True
    ),
    ONE.with_(queries=130, head_dim=70, value_dim=70),
    ONE.with_(dtype=torch.bfloat16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_segments_agree_with_float64(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all gradients, those of states and of decay too."""
    reason = find_backend("triton").unusable()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(launches, "SHORTEST", 64)
    assert_within_budget(case, "triton")
