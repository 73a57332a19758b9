"""Tests of linattn_cuda alone; the contract suite covers what every backend promises."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

pytest.importorskip("linattn_cuda", reason="linattn-cuda is not installed")

from tests.cuda import emulated


@pytest.fixture(scope="module")
def emulation() -> Iterator[ModuleType]:
    """The emulated kernels as backends, whole and in segments, and their module."""
    with emulated.registered():
        yield emulated.emulated_module()
