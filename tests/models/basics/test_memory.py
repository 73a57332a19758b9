"""Free memory is what the system reports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linattn_models.basics import memory
from linattn_models.basics.memory import available_memory, lacks_memory

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("names", "unlimited"),
    [
        (("memory.max", "memory.current", "memory.stat", "inactive_file"), "max"),
        (
            ("limit_in_bytes", "usage_in_bytes", "stat", "total_inactive_file"),
            "9223372036854771712",
        ),
    ],
    ids=["v2", "v1"],
)
def test_free_memory_respects_the_limit_of_a_cgroup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...], unlimited: str
) -> None:
    *files, cached = names
    folder = tmp_path if "." in files[0] else tmp_path / "memory"
    folder.mkdir(exist_ok=True)
    paths = [folder / (name if "." in name else f"memory.{name}") for name in files]
    contents = ("1000000\n", "700000\n", f"anon 1\n{cached} 200000\n")
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert available_memory(CPU) == 500_000
    paths[0].write_text(unlimited + "\n")
    assert available_memory(CPU) > 500_000


@pytest.mark.parametrize(
    "shortage",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_a_lack_of_memory_is_told_from_faults(shortage: BaseException) -> None:
    assert lacks_memory(shortage)
    assert not lacks_memory(RuntimeError("a fault"))
