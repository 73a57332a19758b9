"""The GPU's cases, with the CPU in its place: every entry is right, and a missing one says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from benchmarks.cases import attention, decoders
from benchmarks.cases.attention import LINEAR, MATERIALIZED, SDPA
from benchmarks.cases.lengths import LENGTHS
from benchmarks.cases.methods import method
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.cases.problem import many_heads
from benchmarks.measure.cases import Method, NotMeasured, Settings, registry

SETTINGS = Settings(quick=True, peers=True, device="cpu")


def _makes(name: str) -> dict[str, Callable[[], Method]]:
    return dict(registry.named(name, "cuda").setup(SETTINGS))


def test_every_length_has_the_same_positions() -> None:
    for length in LENGTHS:
        problem = many_heads(length)
        assert problem.batch * problem.length == 65_536
        assert problem.batch * problem.heads >= 64


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [LINEAR, SDPA, FAST_TRANSFORMERS, MATERIALIZED, "lsh-1", "lsh-4"])
def test_an_entry_passes_its_check(name: str, dtype: torch.dtype, backward: bool) -> None:
    try:
        asked = dataclasses.replace(many_heads(512), dtype=dtype, backward=backward)
        made = method(name, asked.sized(SETTINGS), SETTINGS)
    except NotMeasured as reason:
        pytest.skip(str(reason))
    assert made.check() is None
    made.run()
    if name == FAST_TRANSFORMERS and dtype != torch.float32:
        assert made.note == "float32"


def test_a_missing_backend_is_a_reason_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention.linattn_core, "backends", lambda: ())
    for make in _makes("operator/few-heads/forward").values():
        with pytest.raises(NotMeasured, match="no live backend 'cuda'"):
            make()


@pytest.mark.parametrize("name", ["one-image", "batch-10000"])
def test_decoders_are_right(name: str) -> None:
    checked = set()
    for method_name, make in _makes(f"generation/images/{name}").items():
        try:
            made = make()
        except NotMeasured:
            continue
        assert made.check() is None, method_name
        checked.add(method_name)
    assert {decoders.LINEAR, decoders.STATEFUL_SOFTMAX} <= checked
