"""Memory is that of the kernel's own accounts."""

from __future__ import annotations

from pathlib import Path

import pixel_memory
import pytest
import torch
from pixel_memory import free_bytes, with_peak

CPU = torch.device("cpu")
MEGABYTES = 64


def test_a_call_s_peak_is_what_it_allocated_and_freed() -> None:
    if not pixel_memory.CLEAR_REFS.exists():
        pytest.skip("no /proc/self/clear_refs on this system")
    result, peak = with_peak(CPU, lambda: torch.ones(MEGABYTES, 1_000_000 // 4).sum().item())
    assert result == MEGABYTES * 250_000
    assert 0.9 * MEGABYTES < peak / 1e6 < 4 * MEGABYTES


def test_where_the_mark_cannot_be_reset_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pixel_memory, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert with_peak(CPU, lambda: 3) == (3, 0.0)


def test_free_memory_respects_a_container_s_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = free_bytes(CPU)
    assert machine > 0
    for name, content in {
        "memory.max": "1000000\n",
        "memory.current": "700000\n",
        "memory.stat": "anon 1\ninactive_file 200000\n",
    }.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(pixel_memory, "CONTAINER", tmp_path)
    assert free_bytes(CPU) == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(CPU) > 500_000
