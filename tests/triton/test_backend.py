"""What the backend refuses, in a sentence; and that nothing but the backend needs triton."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from linattn_core import LinearAttentionState
from linattn_core.calls import AttentionCall, StepCall
from linattn_triton import device
from linattn_triton.backend import LONGEST, TritonBackend

X = torch.zeros(1, 1, 1, 8)
CACHED = (device.missing, device.unusable, device.too_old, device.programs_at_once)


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> TritonBackend:
    """The backend, which takes the device of any tensor for a GPU."""
    monkeypatch.setattr(device, "refuses", lambda device: None)
    return TritonBackend()


def call_of(x: torch.Tensor) -> AttentionCall:
    return AttentionCall(x, x, x, is_causal=True)


def test_memory_of_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "on cpu" in str(TritonBackend().refuses(call_of(X)))


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.language", None)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "triton cannot be imported" in str(TritonBackend().unusable())


@pytest.mark.parametrize(
    ("version", "refused"), [("3.5.1", True), ("3.6.0", False), ("4.0", False)]
)
def test_an_older_triton_is_refused(
    version: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.importlib, "import_module", lambda name: None)
    monkeypatch.setattr(device, "installed_version", lambda: version)
    reason = device.missing()
    assert (reason is not None and version in reason) if refused else reason is None


@pytest.mark.parametrize(("capability", "refused"), [((7, 5), True), ((8, 0), False)])
def test_an_old_gpu_is_refused(
    capability: tuple[int, int], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    assert (device.too_old(0) is not None) == refused


def test_a_triton_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launcher is compiled in C when it starts."""

    class Runtime:
        @property
        def driver(self) -> Any:
            raise RuntimeError("Failed to find C compiler.")

    found = importlib.import_module
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        device.importlib,
        "import_module",
        lambda name: Runtime() if name == "triton.runtime" else found(name),
    )
    reason = str(TritonBackend().unusable())
    assert "Failed to find C compiler." in reason and "gcc" in reason


def test_a_small_gpu_gets_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert device.programs_at_once(torch.device("cuda")) == 160


@pytest.mark.parametrize("width", [256, 257])
def test_wide_heads_are_refused(width: int, on_gpu: TritonBackend) -> None:
    state = LinearAttentionState.zeros(1, 1, width, width)
    x = torch.zeros(1, 1, 1, width)
    row = x[:, :, 0]
    for call in (call_of(x), StepCall(row, row, row, state)):
        reason = on_gpu.refuses(call)
        assert reason is None if width == 256 else str(width) in str(reason)


def test_float64_and_too_many_positions_are_refused(on_gpu: TritonBackend) -> None:
    assert "float64" in str(on_gpu.refuses(call_of(X.double())))
    assert "positions" in str(on_gpu.refuses(call_of(X.expand(1, 1, LONGEST + 1, 8))))


def test_it_imports_where_there_is_no_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from linattn_triton.backend import TritonBackend\n"
        "print(TritonBackend().unusable(), TritonBackend().description)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "triton cannot be imported" in found.stdout
