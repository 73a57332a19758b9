"""The lean kernels: bfloat16 with 64 features and values, or forward 128, by the definition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_core.calls import AttentionCall
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case
from tests.cuda.emulated import NAMES, WALKING, EmulatedBackend

pytestmark = pytest.mark.usefixtures("emulation")

ONE = Case(batch=1, heads=2, head_dim=64, value_dim=64, dtype=torch.bfloat16)
CASES = [pytest.param(ONE.with_(head_dim=n, value_dim=n), id=f"{n} dims") for n in (64, 128)]
# Shared memory of a block in which the generic kernels fit, and the lean ones do not; and that of
# 8.6, 8.9 and 12.x.
LITTLE, SOME = 64 * 1024, 99 * 1024


@pytest.mark.parametrize("feature_map", ["identity", "relu", "elu"])
@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("one", CASES)
def test_agrees_with_float64(one: Case, backend: str, feature_map: str) -> None:
    case = one.with_(queries=300, feature_map=feature_map)
    assert_within_budget(case, backend)
    assert_within_budget(case.with_(is_causal=False, initial_state=True), backend)
    assert_within_budget(case.with_(normalize=False, heads=4, kv_heads=2), backend)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_gradients_of_any_call(data: st.DataObject) -> None:
    """With a mask, or without causality, some of their passes are the generic kernel's."""
    heads, kv_heads = data.draw(st.sampled_from([(1, 1), (2, 1), (4, 2)]))
    lengths = data.draw(st.lists(st.integers(0, 140), min_size=2, max_size=3))
    if data.draw(st.booleans()):
        ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        where = {"batch": 1, "queries": ends[-1], "cu_seqlens": tuple(ends)}
    else:
        where = {"batch": len(lengths), "queries": max(lengths), "key_lengths": tuple(lengths)}
    case = ONE.with_(
        heads=heads,
        kv_heads=kv_heads,
        feature_map=data.draw(st.sampled_from(["elu", "relu", "identity"])),
        initial_state=data.draw(st.booleans()),
        is_causal=data.draw(st.sampled_from([True, True, False])),
        normalize=data.draw(st.booleans()),
        mask=data.draw(st.sampled_from([None, "gaps"])),
        seed=data.draw(st.integers(0, 99)),
        **where,
    )
    assert_within_budget(case, data.draw(st.sampled_from(NAMES)))


@contextmanager
def shared_memory(limit: int, emulation: ModuleType) -> Iterator[None]:
    """A GPU whose blocks may have so many bytes of shared memory."""
    emulation.set_shared_limit(limit)
    try:
        yield
    finally:
        emulation.set_shared_limit(232_448)


def count_products(case: Case, emulation: ModuleType) -> tuple[int, int]:
    """Instructions of the tensor cores in the forward pass, and in those of the gradients."""
    call = AttentionCall(*case.inputs().values(), is_causal=True, requires_grad=True)
    emulation.take_products()
    output = EmulatedBackend().attention(call)
    forward = sum(emulation.take_products())
    EmulatedBackend().attention_backward(call, output, torch.ones_like(output.out), None)
    return forward, sum(emulation.take_products())


@pytest.mark.parametrize("one", CASES)
def test_they_run_where_they_fit(one: Case, emulation: ModuleType) -> None:
    """Told by the number of their products; the generic ones run where memory is too small."""
    case = one.with_(queries=256)
    lean = count_products(case, emulation)
    generic = count_products(case.with_(value_dim=one.value_dim - 1), emulation)
    assert lean[0] != generic[0]
    assert (lean[1] != generic[1]) == (one.head_dim == 64)
    with shared_memory(SOME, emulation):
        assert count_products(case, emulation) == (lean if one.head_dim == 64 else generic)
    with shared_memory(LITTLE, emulation):
        assert count_products(case, emulation) == generic
        assert_within_budget(case, WALKING)


@pytest.mark.parametrize("feature", [-44.5, 2e17])
def test_sums_without_an_inverse(feature: float) -> None:
    """Weights that all but vanish, or all but overflow."""
    q = torch.full((1, 1, 70, 64), feature).to(torch.bfloat16)
    v = torch.full((1, 1, 70, 64), 1.5).to(torch.bfloat16)
    out = EmulatedBackend().attention(AttentionCall(q, q, v, True, eps=0.0)).out
    torch.testing.assert_close(out, v, rtol=1e-2, atol=0)
