"""The memory of freed tensors, kept while a model trains on a CPU."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from linattn_models.training import allocation
from tests.training.toy import toy_run

# Prints the page faults of memory, after as much was freed: of 64 MiB before, in the context of
# another device, and in that of the CPU; of 8 MiB after it. And the bytes by which resident memory
# has grown after it, where a small tensor is left that was made after a large one.
SCRIPT = """
import ctypes, json, resource
import psutil, torch
from linattn_models.training.allocation import freed_memory_kept

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def use(mib):
    memory = ctypes.c_void_p(library.malloc(ctypes.c_size_t(mib << 20)))
    library.memset(memory, 1, ctypes.c_size_t(mib << 20))
    library.free(memory)

def faults(mib):
    use(mib)
    use(mib)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use(mib)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return psutil.Process().memory_info().rss

before = faults(64)
with freed_memory_kept(torch.device("meta")):
    other = faults(64)
bytes_before = resident()
with freed_memory_kept(torch.device("cpu")):
    inside = faults(64)
    large = torch.ones(2**24)
    kept = torch.ones(2**12)
    del large
grown = resident() - bytes_before
print(json.dumps(dict(
    before=before, other=other, inside=inside, after=faults(8), grown=grown
)))
"""
FRESH = 16  # faults of 64 MiB are at least twice as many, even with huge pages of 2 MiB

glibc = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")),
    reason="needs glibc, whose allocator it configures",
)


SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@glibc
def test_memory_is_used_again_in_the_context_and_goes_back_after_it() -> None:
    usual = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=usual, capture_output=True, text=True, check=True
    )
    numbers: dict[str, int] = json.loads(run.stdout)
    assert numbers["before"] > FRESH and numbers["other"] > FRESH
    assert numbers["inside"] < FRESH / 4
    assert numbers["grown"] < 32 << 20
    assert numbers["after"] < FRESH / 4  # as in a process that never was in the context


@glibc
@pytest.mark.parametrize("variable", ["GLIBC_TUNABLES", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"])
def test_an_allocator_that_is_configured_is_left_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    assert allocation._glibc() is not None
    monkeypatch.setenv(variable, "glibc.malloc.arena_max=4" if variable[0] == "G" else "0")
    assert allocation._glibc() is None
    with allocation.freed_memory_kept(torch.device("cpu")):
        pass


def test_training_runs_in_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices: list[torch.device] = []

    @contextmanager
    def recorded(device: torch.device) -> Iterator[None]:
        devices.append(device)
        yield

    monkeypatch.setattr("linattn_models.training.run.freed_memory_kept", recorded)
    toy_run(tmp_path / "run")
    assert [device.type for device in devices] == ["cpu"]
