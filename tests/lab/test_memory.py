"""Measured memory is what the system reports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linattn_core import linear_attention
from linattn_lab import memory
from linattn_lab.memory import peak_memory
from linattn_models.basics.memory import available_memory

CPU = torch.device("cpu")
MEGABYTES = 64


@pytest.mark.parametrize("sampled", [False, True])
def test_a_call_s_peak_is_what_it_allocated_and_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sampled: bool
) -> None:
    if sampled:  # as where the high-water mark cannot be reset
        monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    result, peak = peak_memory(CPU, lambda: torch.ones(MEGABYTES, 250_000))
    assert result.sum() == MEGABYTES * 250_000
    assert 0.9 * MEGABYTES < peak / 1e6 < 4 * MEGABYTES


def test_the_peak_counts_memory_that_a_backend_had_kept() -> None:
    query = torch.zeros(1, 8, 65_536, 32)  # too large for the heap, whose pages may stay

    def attend() -> None:
        linear_attention(query, query, query, is_causal=True)

    attend()
    _, peak = peak_memory(CPU, attend)
    assert peak > 0.9 * query.nbytes


def test_what_a_call_raises_passes_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fault() -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    with pytest.raises(RuntimeError, match="a fault"):
        peak_memory(CPU, fault)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_s_memory_is_that_of_its_allocator() -> None:
    device = torch.device("cuda")
    free = available_memory(device)
    held, peak = peak_memory(device, lambda: torch.zeros(MEGABYTES, 10**6, device=device))
    assert held.nbytes <= peak < 1.1 * held.nbytes
    assert available_memory(device) < free
