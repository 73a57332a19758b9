"""The backend "cupy": only by name, what it refuses, and why."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from linattn_core import LinearAttentionState, backends, explain, linear_attention
from linattn_core.calls import AttentionCall, StepCall
from linattn_cuda import device
from linattn_cuda.device import Gpu
from linattn_cuda.prototypes import LADDER, Rung, ladder
from linattn_cuda.prototypes.backend import CupyBackend
from linattn_cuda.prototypes.ladder import find_refusal


def call(**changes: Any) -> AttentionCall:
    dim, value_dim = changes.pop("dim", 16), changes.pop("value_dim", 16)
    dtype, value_dtype = changes.pop("dtype", torch.float32), changes.pop("value_dtype", None)
    on = changes.pop("device", "meta")
    with FakeTensorMode():  # tensors of a GPU that is not there
        query = torch.empty(1, 2, 5, dim, device=on, dtype=dtype)
        value = torch.empty(1, 2, 5, value_dim, device=on, dtype=value_dtype or dtype)
    return AttentionCall(query, query, value, True)._replace(**changes)


def test_auto_never_asks_it() -> None:
    names = backends()
    assert names.index("cupy") > names.index("reference")


def test_it_is_live_where_there_is_no_cupy() -> None:
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "from linattn_core.registry import find_backend\n"
        "print(find_backend('cupy').unusable())"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert "CuPy is not installed" in ended.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_calls_are_refused_where_nothing_runs() -> None:
    x = torch.randn(1, 1, 4, 4)

    assert explain(x, x, x, is_causal=True)["cupy"] != "accepts"
    with pytest.raises(ValueError, match="cupy"):
        linear_attention(x, x, x, is_causal=True, backend="cupy")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"requires_grad": True}, "forward only"),
        ({"is_causal": False}, "is_causal"),
        ({"key_lengths": torch.tensor([5])}, "key_lengths"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "cu_seqlens"),
        ({"initial_state": LinearAttentionState.zeros(1, 2, 16, 16)}, "initial_state"),
        ({"return_state": True}, "return_state"),
        ({"dtype": torch.float64}, "float64"),
        ({"value_dtype": torch.bfloat16}, "bfloat16 and float32"),
        ({"dim": 129}, "129"),
        ({"value_dim": 256}, "256"),
    ],
)
def test_what_no_rung_does_is_refused(changes: dict[str, Any], named: str) -> None:
    assert named in str(find_refusal(call(**changes)))


def test_a_call_that_rungs_take() -> None:
    assert find_refusal(call()) is None
    assert find_refusal(call(dim=128, value_dim=1)) is None


def test_tensors_of_another_device_are_refused_without_starting_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It starts no CUDA, after which a process could not be forked."""
    elsewhere = call()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("the driver was asked"))

    assert "on meta" in str(CupyBackend().refuses(elsewhere))


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Of compute capability 7.5, with 64 KiB of shared memory a block."""
    monkeypatch.setattr(ladder, "find_fault", lambda: None)
    monkeypatch.setattr(device, "gpu_of", lambda on: Gpu("a GPU", (7, 5), 40, 64 << 10))
    return torch.device("cuda")


def test_a_gpu_that_is_too_small(old_gpu: torch.device) -> None:
    cupy, half = CupyBackend(), {"dtype": torch.bfloat16}
    wide = call(device=old_gpu, dim=128, value_dim=128)

    assert "shared memory" in str(cupy.refuses(wide))
    assert "compute capability" in str(cupy.refuses(call(device=old_gpu, **half)))
    assert cupy.refuses(call(device=old_gpu)) is None


def test_steps_and_gradients_are_refused() -> None:
    x = torch.randn(1, 1, 4)
    step = StepCall(x, x, x, LinearAttentionState.zeros(1, 1, 4, 4))
    cupy = CupyBackend()

    assert "step" in str(cupy.refuses(step))
    with pytest.raises(ValueError, match="step"):
        cupy.step(step)


X = torch.zeros(1, 1, 4, 8)


@pytest.mark.parametrize(
    ("tensors", "options", "named"),
    [
        ((X, X, X), {}, "on cpu"),
        ((X, X, X[:, :, :3]), {}, "length"),
        ((X, X[..., :5], X), {}, "dim"),
        ((X, X, X.double()), {}, "float64"),
        ((X, X, X), {"feature_map": "favor"}, "favor"),
        ((X.numpy(), X, X), {}, "ndarray"),
    ],
)
def test_a_rung_checks_what_its_kernels_rely_on(
    tensors: tuple[Any, ...], options: dict[str, Any], named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        LADDER["overlapped"].attention(*tensors, **options)


@pytest.mark.parametrize("rung", LADDER.values(), ids=list(LADDER))
def test_each_rung_defines_its_kernels(rung: Rung) -> None:
    text = " ".join(rung.source.read_text(encoding="utf-8").split())
    assert all(f" {kernel}(Call call)" in text for kernel in rung.kernels)
