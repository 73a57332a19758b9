"""Gradients of calls with decay, which may be learned or fixed."""

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
    Case(queries=70, log_decay="strong", key_lengths=(70, 33), head_dim=20, value_dim=40),
    Case(batch=1, queries=97, log_decay="positions", cu_seqlens=(0, 0, 20, 97), initial_state=True),
    Case(queries=70, log_decay="heads", normalize=False, return_normalizer=True),
    Case(queries=70, log_decay="positions", initial_state=True, dtype=torch.bfloat16),
]


@pytest.fixture(autouse=True)
def _usable() -> None:
    reason = find_backend("triton").unusable()
    if reason is not None:
        pytest.skip(reason)


def check(case: Case, wanted: set[str]) -> None:
    """Results, and the gradients of these tensors alone, are within the budget."""
    with torch.device(device_of("triton") or "cpu"):
        tensors = case.inputs()
        oracle, own = (by_definition(case, tensors, x) for x in (torch.float64, case.dtype))
        leaves = {n: x.detach().requires_grad_(n in wanted) for n, x in tensors.items()}
        got = evaluate(linear_attention, leaves, {**case.options(), "backend": "triton"})
    assert {x.removeprefix("grad_") for x in got if x.startswith("grad_")} == wanted
    for name, x in got.items():
        allowed = budget("triton", name, error(own[name], oracle[name]), oracle[name], case.dtype)
        assert error(x, oracle[name]) <= allowed, name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_learned_decay(case: Case) -> None:
    check(case, set(case.inputs()))


def test_only_the_decay_is_learned() -> None:
    check(CASES[1], {"log_decay"})


def test_a_fixed_decay() -> None:
    check(CASES[0], set(CASES[0].inputs()) - {"log_decay"})
