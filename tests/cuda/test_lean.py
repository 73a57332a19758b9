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
from linattn_core.registry import find_backend
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case, on_backend
from tests.cuda.emulated import CUT, NAMES, WALKING, EmulatedBackend
from tests.cuda.layouts import LAYOUTS

pytestmark = pytest.mark.usefixtures("emulation")

ONE = Case(batch=1, heads=2, head_dim=64, value_dim=64, dtype=torch.bfloat16)
CASES = [pytest.param(ONE.with_(head_dim=n, value_dim=n), id=f"{n} dims") for n in (64, 128)]
# Shared memory of a block in which the generic kernels fit, and the lean ones do not.
LITTLE = 64 * 1024


@pytest.mark.parametrize("feature_map", ["identity", "relu", "elu"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("one", CASES)
def test_agrees_with_float64(one: Case, backend: str, is_causal: bool, feature_map: str) -> None:
    case = one.with_(queries=300, is_causal=is_causal, feature_map=feature_map)
    assert_within_budget(case, backend)
    assert_within_budget(case.with_(initial_state=True), backend)
    assert_within_budget(case.with_(normalize=False, heads=4, kv_heads=2), backend)


@pytest.mark.parametrize("length", [1, 16, 63, 64, 65, 128, 129, 257])
@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("one", CASES)
def test_ragged_lengths(one: Case, backend: str, length: int) -> None:
    case = one.with_(queries=length, initial_state=True)
    assert_within_budget(case, backend)
    assert_within_budget(case.with_(queries=70, keys=length, is_causal=False), backend)


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("one", CASES)
def test_key_lengths_and_packed_sequences(one: Case, backend: str) -> None:
    plain = one.with_(heads=1, initial_state=True)
    padded = plain.with_(batch=4, queries=200, key_lengths=(0, 64, 130, 200))
    packed = plain.with_(queries=270, cu_seqlens=(0, 0, 64, 65, 200, 270))
    for case in (padded, packed):
        assert_within_budget(case, backend)
        assert_within_budget(case.with_(is_causal=False), backend)


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
def little_memory(emulation: ModuleType) -> Iterator[None]:
    """A GPU whose blocks have too little shared memory for a lean kernel."""
    emulation.set_shared_limit(LITTLE)
    try:
        yield
    finally:
        emulation.set_shared_limit(232_448)


def products_backward(case: Case, emulation: ModuleType) -> int:
    """Instructions of the tensor cores in the passes of the gradients."""
    call = AttentionCall(*case.inputs().values(), is_causal=True, requires_grad=True)
    output = EmulatedBackend().attention(call)
    emulation.take_products()
    EmulatedBackend().attention_backward(call, output, torch.ones_like(output.out), None)
    return sum(emulation.take_products())


def test_gradients_run_where_they_fit(emulation: ModuleType) -> None:
    """The products of each warp in a chunk.

    In the pass of the queries, those of h and z, and those of the forward pass. In the pair, those
    of r, one addition to the state, and all others twice.
    """
    case, chunks, of_causality = ONE.with_(queries=256), 2 * 4, 10 * 8
    queries = 4 * (8 + 4 + 2 * 32) + 2 * of_causality
    pair = 4 * (4 + 3 * 32) + 4 * of_causality
    assert products_backward(case, emulation) == chunks * (queries + pair)
    generic = products_backward(case.with_(value_dim=63), emulation)
    with little_memory(emulation):
        assert products_backward(case, emulation) == generic
        assert_within_budget(case, WALKING)


def products_of(case: Case, emulation: ModuleType) -> int:
    """Instructions of the tensor cores in the forward pass."""
    emulation.take_products()
    call = AttentionCall(*case.inputs().values(), is_causal=case.is_causal)
    EmulatedBackend().attention(call)
    return sum(emulation.take_products())


@pytest.mark.parametrize("one", CASES)
def test_it_runs_where_it_fits(one: Case, emulation: ModuleType) -> None:
    """Each warp reads the state and adds to it, and has two products of the keys that rows see.

    For 128 dims, four warps find the scores that the other four have too.
    """
    case, chunks, width = one.with_(queries=256), 2 * 4, one.head_dim
    warps, steps = width // 16, width // 16
    state = warps * (8 * steps + 4 * 2 * steps + steps + 4 + 4)
    scores = warps // 4 * 10 * (2 * steps + 8)
    assert products_of(case, emulation) == chunks * (state + scores)
    generic = products_of(case.with_(value_dim=width - 1), emulation)
    with little_memory(emulation):
        assert products_of(case, emulation) == generic
        assert_within_budget(case, WALKING)


@pytest.mark.parametrize("one", CASES)
def test_any_layout_is_read(one: Case) -> None:
    """Rows that begin at multiples of 16 bytes, at any distance, by it; others by the generic."""
    case = one.with_(queries=130)
    tensors = case.inputs()
    expected = on_backend(case, WALKING, tensors)
    for name, layout in LAYOUTS.items():
        laid = {n: layout(x.detach()).requires_grad_() for n, x in tensors.items()}
        for what, x in on_backend(case, WALKING, laid).items():
            atol = 2**-6 * max(1.0, expected[what].abs().max().item())
            torch.testing.assert_close(
                x, expected[what], rtol=2**-6, atol=atol, msg=f"{name}, {what}"
            )


@pytest.mark.parametrize("segments", [2, 5])
@pytest.mark.parametrize("one", CASES)
def test_segments_give_what_walking_gives(
    one: Case, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = one.with_(queries=500, initial_state=True)
    monkeypatch.setattr(find_backend(CUT), "segments", segments)
    assert_within_budget(case, CUT)


@pytest.mark.parametrize("one", CASES)
def test_the_same_bits_in_any_order_of_blocks_and_warps(one: Case, emulation: ModuleType) -> None:
    case = one.with_(queries=200, initial_state=True)
    tensors = case.inputs()
    for backend in NAMES:
        results = []
        for seed in (0, -1, 7):
            emulation.set_order(seed)
            results.append(on_backend(case, backend, tensors))
        emulation.set_order(0)
        for name, x in results[0].items():
            assert all(torch.equal(x, other[name]) for other in results[1:]), (backend, name)


@pytest.mark.parametrize("feature", [-44.5, 2e17])
def test_sums_without_an_inverse(feature: float) -> None:
    """Weights that all but vanish, or all but overflow."""
    q = torch.full((1, 1, 70, 64), feature).to(torch.bfloat16)
    v = torch.full((1, 1, 70, 64), 1.5).to(torch.bfloat16)
    out = EmulatedBackend().attention(AttentionCall(q, q, v, True, eps=0.0)).out
    torch.testing.assert_close(out, v, rtol=1e-2, atol=0)
