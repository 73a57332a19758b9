"""The lean kernel: bfloat16 forward with 64 features and 64 values, against the definition."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from linattn_core.calls import AttentionCall
from linattn_core.registry import find_backend
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case, on_backend
from tests.cuda.emulated import CUT, NAMES, WALKING, EmulatedBackend
from tests.cuda.layouts import LAYOUTS

pytestmark = pytest.mark.usefixtures("emulation")

ONE = Case(batch=1, heads=2, head_dim=64, value_dim=64, dtype=torch.bfloat16)
# Shared memory of a block in which the generic kernel fits, and the lean one does not.
LITTLE = 64 * 1024


@pytest.mark.parametrize("feature_map", ["identity", "relu", "elu"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("backend", NAMES)
def test_agrees_with_float64(backend: str, is_causal: bool, feature_map: str) -> None:
    case = ONE.with_(queries=300, is_causal=is_causal, feature_map=feature_map)
    assert_within_budget(case, backend)
    assert_within_budget(case.with_(initial_state=True), backend)
    assert_within_budget(case.with_(normalize=False, heads=4, kv_heads=2), backend)


@pytest.mark.parametrize("length", [1, 16, 63, 64, 65, 128, 129, 257])
@pytest.mark.parametrize("backend", NAMES)
def test_ragged_lengths(backend: str, length: int) -> None:
    case = ONE.with_(queries=length, initial_state=True)
    assert_within_budget(case, backend)
    assert_within_budget(case.with_(queries=70, keys=length, is_causal=False), backend)


@pytest.mark.parametrize("backend", NAMES)
def test_key_lengths_and_packed_sequences(backend: str) -> None:
    plain = ONE.with_(heads=1, initial_state=True)
    padded = plain.with_(batch=4, queries=200, key_lengths=(0, 64, 130, 200))
    packed = plain.with_(queries=270, cu_seqlens=(0, 0, 64, 65, 200, 270))
    for case in (padded, packed):
        assert_within_budget(case, backend)
        assert_within_budget(case.with_(is_causal=False), backend)


def products_of(case: Case, emulation: ModuleType) -> int:
    """Instructions of the tensor cores in the forward pass."""
    emulation.take_products()
    call = AttentionCall(*case.inputs().values(), is_causal=case.is_causal)
    EmulatedBackend().attention(call)
    return sum(emulation.take_products())


def test_it_runs_where_it_fits(emulation: ModuleType) -> None:
    """Each chunk of 64: the state's products twice, and the scores that causality leaves, twice."""
    case, chunks = ONE.with_(queries=256), 2 * 4
    assert products_of(case, emulation) == chunks * (4 * (2 * 32 + 3 * 4) + 2 * 10 * 8)
    generic = products_of(case.with_(value_dim=63), emulation)
    emulation.set_shared_limit(LITTLE)
    try:
        assert products_of(case, emulation) == generic
        assert_within_budget(case, WALKING)
    finally:
        emulation.set_shared_limit(232_448)


def test_any_layout_is_read() -> None:
    """Rows that begin at multiples of 16 bytes, at any distance, by it; others by the generic."""
    case = ONE.with_(queries=130)
    tensors = case.inputs()
    expected = on_backend(case, WALKING, tensors)
    for name, layout in LAYOUTS.items():
        laid = {n: layout(x.detach()).requires_grad_() for n, x in tensors.items()}
        for what, x in on_backend(case, WALKING, laid).items():
            torch.testing.assert_close(
                x, expected[what], rtol=2**-6, atol=2**-6, msg=f"{name}, {what}"
            )


@pytest.mark.parametrize("segments", [2, 5])
def test_segments_give_what_walking_gives(segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = ONE.with_(queries=500, initial_state=True)
    monkeypatch.setattr(find_backend(CUT), "segments", segments)
    assert_within_budget(case, CUT)


def test_the_same_bits_in_any_order_of_blocks_and_warps(emulation: ModuleType) -> None:
    case = ONE.with_(queries=200, initial_state=True)
    tensors, results = case.inputs(), []
    for seed in (0, -1, 7):
        emulation.set_order(seed)
        results.append(on_backend(case, WALKING, tensors))
    emulation.set_order(0)
    for name, x in results[0].items():
        assert all(torch.equal(x, other[name]) for other in results[1:]), name


@pytest.mark.parametrize("feature", [-44.5, 2e17])
def test_sums_without_an_inverse(feature: float) -> None:
    """Weights that all but vanish, or all but overflow."""
    q = torch.full((1, 1, 70, 64), feature).to(torch.bfloat16)
    v = torch.full((1, 1, 70, 64), 1.5).to(torch.bfloat16)
    out = EmulatedBackend().attention(AttentionCall(q, q, v, True, eps=0.0)).out
    torch.testing.assert_close(out, v, rtol=1e-2, atol=0)
