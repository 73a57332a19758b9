"""Gradients of calls whose decay is fixed: the kernels' own, unlike those with its gradient."""

from __future__ import annotations

import pytest
import torch

from linattn_core import linear_attention
from linattn_core.registry import find_backend
from tests.contract.agreement import error
from tests.contract.budgets import budget
from tests.contract.cases import Case, by_definition, evaluate
from tests.contract.places import device_of

CASES = [
    Case(queries=70, log_decay="positions", initial_state=True),
    Case(queries=40, log_decay="resets", heads=4, kv_heads=2, mask="gaps"),
]


@pytest.fixture(autouse=True)
def _usable() -> None:
    reason = find_backend("triton").unusable()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_within_budget(case: Case) -> None:
    with torch.device(device_of("triton") or "cpu"):
        tensors = case.inputs()
        oracle, own = (by_definition(case, tensors, x) for x in (torch.float64, case.dtype))
        options = {**case.options(), "backend": "triton"}
        decay = tensors.pop("log_decay").detach()
        got = evaluate(linear_attention, tensors, {**options, "log_decay": decay})
    assert "grad_log_decay" not in got and "grad_key" in got
    for name, x in got.items():
        allowed = budget("triton", name, error(own[name], oracle[name]), oracle[name], case.dtype)
        assert error(x, oracle[name]) <= allowed, name
