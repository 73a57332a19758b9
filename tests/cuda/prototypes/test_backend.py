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
from linattn_cuda.prototypes import LADDER, backend
from linattn_cuda.prototypes.backend import CupyBackend, unsupported


def call(**changes: Any) -> AttentionCall:
    dim, value_dim = changes.pop("dim", 16), changes.pop("value_dim", 16)
    dtype, value_dtype = changes.pop("dtype", torch.float32), changes.pop("value_dtype", None)
    device = changes.pop("device", "meta")
    with FakeTensorMode():  # tensors of a GPU that is not there
        query = torch.empty(1, 2, 5, dim, device=device, dtype=dtype)
        value = torch.empty(1, 2, 5, value_dim, device=device, dtype=value_dtype or dtype)
    return AttentionCall(query, query, value, True)._replace(**changes)


def test_it_is_live_and_auto_never_asks_it() -> None:
    names = backends()

    assert "cupy" in names
    assert names.index("cupy") > names.index("reference")


def test_it_loads_where_there_is_no_cupy() -> None:
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "from linattn_cuda.prototypes.backend import CupyBackend\n"
        "print(CupyBackend().unusable())"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert "CuPy is not installed" in ended.stdout


def test_it_loads_without_loading_cupy() -> None:
    program = (
        "import sys\n"
        "from linattn_core import backends\n"
        "assert 'cupy' in backends()\n"
        "assert 'cupy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_calls_are_refused_where_nothing_runs() -> None:
    x = torch.randn(1, 1, 4, 4)

    answer = explain(x, x, x, is_causal=True)["cupy"]

    assert answer.startswith(("CuPy is not installed", "it runs on CUDA tensors"))
    with pytest.raises(ValueError, match="backend 'cupy' refuses this call"):
        linear_attention(x, x, x, is_causal=True, backend="cupy")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"requires_grad": True}, "forward only; pass backend=\"auto\" where gradients"),
        ({"is_causal": False}, "are causal and is_causal is False"),
        ({"key_lengths": torch.tensor([5])}, "take no key_lengths"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "take no cu_seqlens"),
        ({"initial_state": LinearAttentionState.zeros(1, 2, 16, 16)}, "take no initial_state"),
        ({"return_state": True}, "take no return_state"),
        ({"dtype": torch.float64}, "alone and got float64"),
        ({"value_dtype": torch.bfloat16}, "alone and got bfloat16 and float32"),
        ({"dim": 129}, "up to 128 and got 129 and 16"),
        ({"value_dim": 256}, "up to 128 and got 16 and 256"),
    ],
)  # fmt: skip
def test_what_no_rung_does_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(unsupported(call(**changes)))


def test_a_call_that_rungs_take() -> None:
    assert unsupported(call()) is None
    assert unsupported(call(dim=128, value_dim=1)) is None


def test_tensors_of_another_device_are_refused_without_starting_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It starts no CUDA, after which a process could not be forked."""
    monkeypatch.setattr(backend, "without_cupy", lambda: None)
    elsewhere = call()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("the driver was asked"))

    assert CupyBackend().refuses(elsewhere) == (
        "it runs on CUDA tensors and these are on meta; move them to a GPU."
    )


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Of compute capability 7.5, with 64 KiB of shared memory a block."""
    monkeypatch.setattr(backend, "without_cupy", lambda: None)
    monkeypatch.setattr(backend, "unusable", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(backend.ladder, "shared_bytes", lambda device: 64 << 10)
    return torch.device("cuda")


def test_a_gpu_that_is_too_small(old_gpu: torch.device) -> None:
    ladder, half = CupyBackend(), {"dtype": torch.bfloat16}
    wide = call(device=old_gpu, dim=128, value_dim=128)

    assert "rung chunked needs 91,840 bytes of shared memory a block" in str(ladder.refuses(wide))
    assert "rung split needs compute capability 8.0 and a GPU has 7.5" in str(
        ladder.refuses(call(device=old_gpu, **half))
    )
    assert ladder.refuses(call(device=old_gpu)) is None


def test_a_rung_by_name(old_gpu: torch.device) -> None:
    ladder = CupyBackend()
    ladder.rung = "recurrent"
    assert ladder.refuses(call(device=old_gpu, dim=128, value_dim=128)) is None
    ladder.rung = "overlapped"
    assert "rung overlapped computes in bfloat16 and the tensors are float32" in str(
        ladder.refuses(call(device=old_gpu))
    )


def test_steps_and_gradients_are_refused() -> None:
    x = torch.randn(1, 1, 4)
    step = StepCall(x, x, x, LinearAttentionState.zeros(1, 1, 4, 4))
    ladder = CupyBackend()

    assert "no decoding step" in str(ladder.refuses(step))
    with pytest.raises(ValueError, match="takes no steps"):
        ladder.step(step)


@pytest.mark.parametrize("rung", LADDER.values(), ids=list(LADDER))
def test_each_rung_says_what_it_is(rung) -> None:
    text = rung.source.read_text(encoding="utf-8")

    assert LADDER[rung.name] is rung
    assert rung.idea.endswith(".")
    assert text.startswith(f"// Rung {1 + list(LADDER).index(rung.name)}, `{rung.name}`: ")
    for part in ("The idea.", "What binds."):
        assert part in text
    assert len(text.splitlines()) <= 240
    for kernel in rung.kernels:
        assert f" {kernel}(Call call)" in " ".join(text.split())


def test_a_rung_refuses_tensors_of_the_cpu() -> None:
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match=r"expected CUDA tensors, got tensors on cpu.*sm_90"):
        LADDER["overlapped"].attention(x, x, x)
