"""The build without nvcc: the same launches through the CUDA driver, of kernels compiled meanwhile.

A stand-in for the driver runs the emulated kernels.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import torch

from linattn_core import LinearAttentionState, registry
from linattn_core.calls import AttentionCall, StepCall
from tests.cuda.emulated import EmulatedBackend
from tests.cuda.emulated_build import driver_module

# Wrong arguments would change everything; what rounding does is held to its budget elsewhere.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


class Compiler:
    """In NVRTC's place: the stand-in's machine code is a kernel's name."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, kernel: str, architecture: str) -> tuple[bytes, str]:
        self.asked.append((kernel, architecture))
        return kernel.encode() + b"\0", f"symbol of {kernel}"


class DriverBackend(EmulatedBackend):
    """On the CPU's tensors, as the stand-in takes addresses."""

    name = "driver"

    def __init__(self, native: ModuleType, segments: int | None = 1, index: int = 0) -> None:
        super().__init__(native=native)
        self.segments, self.index = segments, index

    def launching(self, device: torch.device) -> AbstractContextManager[int]:
        self.native.make_current(self.index)
        return nullcontext(0)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """What the module asks for machine code, from its first launch on."""
    compiler = Compiler()
    driver_module().set_compiler(compiler)
    return compiler


@pytest.fixture
def native(compiler: Compiler) -> ModuleType:
    return driver_module()


def draw(dtype: torch.dtype, width: int = 24) -> AttentionCall:
    torch.manual_seed(0)
    tensors = (torch.randn(1, 2, 200, width).to(dtype) for _ in range(3))
    return AttentionCall(*tensors, True, return_state=True, requires_grad=True)


def results(backend: Any, call: AttentionCall) -> dict[str, torch.Tensor]:
    output = backend.attention(call)
    gradients = backend.attention_backward(call, output, torch.ones_like(output.out), None)
    named = output._asdict() | {f"grad_{n}": x for n, x in gradients._asdict().items()}
    return {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("segments", [1, 3, None])
def test_every_pass_agrees_with_the_reference(
    segments: int | None, dtype: torch.dtype, native: ModuleType
) -> None:
    causal = draw(dtype)
    for call in (causal, causal._replace(is_causal=False)):
        ours = results(DriverBackend(native, segments), call)
        expected = results(registry.find_backend("reference"), call)
        assert {"out", "normalizer", "grad_query", "grad_key", "grad_value"} <= ours.keys()
        for name, x in ours.items():
            largest = expected[name].abs().max().item()
            torch.testing.assert_close(
                x, expected[name], rtol=0, atol=TOLERANCE[dtype] * largest, check_dtype=False
            )


def test_a_step_agrees_with_the_reference(native: ModuleType) -> None:
    """It takes two arguments of different sizes."""
    x = torch.randn(3, 2, 5)
    backends = (DriverBackend(native), registry.find_backend("reference"))
    states = [LinearAttentionState(torch.ones(3, 2, 5, 5), torch.ones(3, 2, 5)) for _ in backends]
    out = [b.step(StepCall(x, x, x, state)) for b, state in zip(backends, states, strict=True)]

    for ours, expected in zip((out[0], *states[0]), (out[1], *states[1]), strict=True):
        torch.testing.assert_close(ours, expected)


def test_each_kernel_is_compiled_once(native: ModuleType, compiler: Compiler) -> None:
    backend = DriverBackend(native)
    for _ in range(2):
        backend.attention(draw(torch.bfloat16))

    asked = [kernel for kernel, architecture in compiler.asked if architecture == "sm_90"]
    assert asked.count("product<ProductShape<1, 32, 32, 64>>") == 1
    assert set(asked) <= set(native.kernel_names())
    assert len(asked) == len(set(asked))


def test_each_gpu_has_its_own_code(native: ModuleType, compiler: Compiler) -> None:
    """A thread goes back and forth; the stand-in refuses a launch of another GPU's code."""
    call, kernel = draw(torch.bfloat16), "product<ProductShape<1, 32, 32, 64>>"
    first, second = DriverBackend(native), DriverBackend(native, index=1)
    out = [backend.attention(call).out for backend in (first, second, first, second)]

    assert all(torch.equal(x, out[0]) for x in out)
    assert [a for k, a in compiler.asked if k == kernel] == ["sm_90", "sm_80"]


def test_more_shared_memory_is_asked_for(native: ModuleType) -> None:
    """The stand-in refuses blocks of more than 48 KiB to a kernel that did not ask."""
    assert DriverBackend(native).attention(draw(torch.bfloat16, 128)).out.isfinite().all()


def test_shared_memory_is_not_taken_back(native: ModuleType) -> None:
    """Another thread may be about to launch the same kernel with more."""
    for dim in (2_000, 1_600, 2_000):
        x = torch.randn(1, 1, dim)
        call = StepCall(x, x, torch.randn(1, 1, 4), LinearAttentionState.zeros(1, 1, dim, 4))
        assert DriverBackend(native).step(call).isfinite().all()


def test_threads_that_have_not_used_cuda(native: ModuleType) -> None:
    """The stand-in refuses launches without a context, which each thread has to enter."""
    found: list[torch.Tensor] = []
    backend = DriverBackend(native)
    thread = Thread(target=lambda: found.append(backend.attention(draw(torch.bfloat16)).out))
    thread.start()
    thread.join()
    assert found and found[0].isfinite().all()


def test_what_the_driver_refuses_is_raised(native: ModuleType) -> None:
    """It has no kernels of 64, as a driver has none where machine code lacks a name."""
    refused = r"launch of kernel product<ProductShape<1, 64, 64, 32>> failed: CUDA_\w+ \(500\): "
    for _ in range(2):
        with pytest.raises(RuntimeError, match=refused):
            DriverBackend(native).attention(draw(torch.bfloat16, 64))


def test_what_the_compiler_raises_comes_through(native: ModuleType, compiler: Compiler) -> None:
    def failing(kernel: str, architecture: str) -> tuple[bytes, str]:
        raise RuntimeError(f"no {kernel} for {architecture}")

    native.set_compiler(failing)
    try:
        with pytest.raises(RuntimeError, match=r"no product<.*> for sm_90"):
            DriverBackend(native).attention(draw(torch.bfloat16, 256))
    finally:
        native.set_compiler(compiler)


def test_other_threads_go_on_while_a_kernel_is_compiled(
    native: ModuleType, compiler: Compiler
) -> None:
    """A compiler in Python lets them run, and kernels that are loaded are launched."""
    went_on, call = [], draw(torch.bfloat16)
    DriverBackend(native).attention(call)

    def slow(kernel: str, architecture: str) -> tuple[bytes, str]:
        other = Thread(target=DriverBackend(native).attention, args=(call,), daemon=True)
        other.start()
        other.join(timeout=600)
        went_on.append(not other.is_alive())
        return compiler(kernel, architecture)

    native.set_compiler(slow)
    try:
        with pytest.raises(RuntimeError, match=r"\(500\)"):
            DriverBackend(native).attention(draw(torch.float16, 256))
    finally:
        native.set_compiler(compiler)
    assert went_on == [True]


def test_a_gpu_is_described(native: ModuleType) -> None:
    assert tuple(native.device_attributes(0)) == (9, 0, 132, 232_448)
    assert tuple(native.device_attributes(1)) == (8, 0, 132, 232_448)
    with pytest.raises(RuntimeError, match=r"a GPU's attributes failed: .*\(101\)"):
        native.device_attributes(2)
    assert native.driver_version() == 13_000
