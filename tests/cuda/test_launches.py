"""A launch that fails is an exception that names the kernel and the error."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.calls import AttentionCall, StepCall
from tests.cuda.emulated import WALKING, EmulatedBackend
from tests.cuda.machine_code import cuda_module

X = torch.zeros(1, 2, 8, 64)


@pytest.fixture
def little_memory(emulation: ModuleType) -> Iterator[None]:
    """A GPU that offers a block less than the backend believes."""
    emulation.set_shared_limit(1_000)
    yield
    emulation.set_shared_limit(232_448)


@pytest.mark.usefixtures("little_memory")
def test_what_the_gpu_refuses_is_raised() -> None:
    with pytest.raises(RuntimeError, match=r"launch of kernel product<\S.*> failed: error 1 "):
        linear_attention(X, X, X, is_causal=True, backend=WALKING)
    state = LinearAttentionState.zeros(1, 2, 64, 64)
    with pytest.raises(RuntimeError, match=r"launch of kernel step\S* failed: error 1 "):
        linear_attention_step(*3 * (X[:, :, 0],), state, backend=WALKING)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_driver_each_kernel_says_so(emulation: object) -> None:
    """The CUDA module itself, past the refusals: it loads, and its calls fail with CUDA's words."""
    unchecked = EmulatedBackend(native=cuda_module())
    no_driver = r"failed: (cudaErrorInsufficientDriver \(35\)|cudaErrorNoDevice \(100\)): \w+"
    with pytest.raises(RuntimeError, match=f"kernel product<.*> {no_driver}"):
        unchecked.attention(AttentionCall(X, X, X, True, return_state=True))
    state = LinearAttentionState.zeros(1, 2, 64, 64)
    with pytest.raises(RuntimeError, match=f"kernel step.* {no_driver}"):
        unchecked.step(StepCall(*3 * (X[:, :, 0],), state))
    with pytest.raises(RuntimeError, match=f"GPU's attributes {no_driver}"):
        cuda_module().device_attributes(0)
