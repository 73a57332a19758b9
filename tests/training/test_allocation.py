"""The memory of freed tensors, kept while a model trains on a CPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from linattn_models.training.allocation import freed_memory_kept

# Prints the page faults of a tensor of 64 MiB before, in and after the context. A larger tensor was
# freed before each.
COUNT = """
import resource
import torch
from linattn_models.training.allocation import freed_memory_kept

def faults():
    torch.ones(2**24 + 2**16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = faults()
with freed_memory_kept(torch.device("{device}")):
    inside = faults()
print(outside, inside, faults())
"""
FRESH = 2**26 // 2**21 / 2  # at least so many, even with huge pages; 500 times as many without

glibc = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")),
    reason="needs glibc, whose allocator it sets",
)


def counted(device: str, **variables: str) -> list[int]:
    """Page faults before, in and after the context."""
    script = [sys.executable, "-c", COUNT.format(device=device)]
    run = subprocess.run(
        script, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return [int(number) for number in run.stdout.split()]


@glibc
def test_memory_is_used_again_in_the_context_and_given_back_after_it() -> None:
    before, inside, after = counted("cpu")
    assert before > FRESH
    assert inside < before / 4
    assert after > FRESH


@glibc
def test_on_other_devices_and_where_the_user_has_set_malloc_nothing_changes() -> None:
    assert counted("meta")[1] > FRESH
    assert counted("cpu", GLIBC_TUNABLES="glibc.malloc.arena_max=4")[1] > FRESH


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A C library without glibc's functions."""

    monkeypatch.setattr("linattn_models.training.allocation.ctypes.CDLL", lambda name: Other())
    with freed_memory_kept(torch.device("cpu")):
        torch.ones(4)


def test_a_failure_in_the_context_restores_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "linattn_models.training.allocation._mallopt", lambda: lambda *call: calls.append(call)
    )
    with pytest.raises(KeyError), freed_memory_kept(torch.device("cpu")):
        raise KeyError
    assert [parameter for parameter, _ in calls[:2]] == [parameter for parameter, _ in calls[2:]]
    assert calls[:2] != calls[2:]
