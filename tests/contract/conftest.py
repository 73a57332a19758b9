"""The contract: one suite for every live backend.

`pytest tests/contract` runs it over all backends that run on this machine, and over the CUDA
kernels emulated on the CPU; `--backend NAME` (repeatable) over those named, for whoever writes a
backend elsewhere; `--instruction-set NAME` by that build of linattn-cpu's kernels. Tensors are made
on the backend's own device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
import torch

from linattn_core.registry import find_backend

from .minimum import COMPLETE, required
from .places import device_of, differentiates, usable_backends

# The CUDA kernels, emulated: one block for a sequence, or several blocks, each for a segment.
EMULATED = ("emulated", "emulated-segments")
# Tests of the way through torch, which does not depend on how a sequence is cut.
CUT_ALIKE = ("test_compile", "test_transforms", "test_attention_state")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        names = metafunc.config.getoption("--backend")
        if not names:
            names = [*usable_backends(), *_emulated(metafunc.module.__name__)]
        metafunc.parametrize("backend", names, indirect=True, scope="module")


def _emulated(module: str) -> tuple[str, ...]:
    if find_spec("linattn_cuda") is None:
        return ()
    return EMULATED[:1] if module.endswith(CUT_ALIKE) else EMULATED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None]:
    """Skips what a backend without gradients refuses, with its sentence as the reason.

    The minimum that each backend has to pass is not skipped, or refusals could empty the suite.
    Where tests need arguments that a backend may lack (the marker `may_refuse`), the refusals of
    every backend that is not `COMPLETE` are skipped.
    """
    try:
        return (yield)
    except ValueError as error:
        name = getattr(item, "funcargs", {}).get("backend")
        if name is None or f"{name!r} refuses" not in str(error):
            raise
        marked = item.get_closest_marker("may_refuse") is not None
        optional = marked and name not in COMPLETE
        if differentiates(name) and not optional:
            raise
        if not optional and required(item.originalname, item.callspec.params):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> None:
    name: str | None = request.config.getoption("--instruction-set")
    if name is not None:
        import linattn_cpu

        linattn_cpu.use_instruction_set(name)


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a live backend, on whose device tensors are made meanwhile."""
    name: str = request.param
    with ExitStack() as meanwhile:
        if name in EMULATED:
            from tests.cuda import emulated  # imported late, because it compiles the kernels

            meanwhile.enter_context(emulated.registered())
        find_backend(name)
        device = device_of(name)
        if device is None:
            pytest.skip(f"backend {name!r} runs on no device of this machine")
        if device != "cpu":
            meanwhile.enter_context(torch.device(device))
        yield name
