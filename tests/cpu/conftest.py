"""Tests of linattn_cpu alone; the contract suite covers what every backend promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .calls import built_for, torch_threads

linattn_cpu = pytest.importorskip("linattn_cpu", reason="linattn-cpu is not installed")

INSTRUCTION_SETS = linattn_cpu.instruction_sets()


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each build of the kernels that this machine runs, made the live one for a test."""
    with built_for(request.param):
        yield request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch with two threads, whatever the machine has."""
    with torch_threads(2):
        yield
