"""What the backend says of itself, and what it refuses before any launch."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from linattn_core import (
    LinearAttentionState,
    backends,
    explain,
    linear_attention,
)
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.registry import installed_backends
from linattn_cuda import backend, device
from linattn_cuda.backend import CudaBackend
from linattn_cuda.device import Gpu
from tests.cuda.emulated import H100, WALKING, EmulatedBackend

X = torch.zeros(1, 2, 8, 64)
CALL = AttentionCall(X, X, X, True, requires_grad=True)
STEP = StepCall(*3 * (X[:, :, 0],), LinearAttentionState.zeros(1, 2, 64, 64))
T4 = Gpu("an emulated T4", (7, 5), 40, 65_536)
V100 = Gpu("an emulated V100", (7, 0), 80, 98_304)


def test_a_launch_makes_its_gpu_current(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    module = SimpleNamespace(built_with="nvcc", make_current=entered.append)
    monkeypatch.setattr(backend, "_native", module)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))

    with CudaBackend().launching(torch.device("cuda", 1)) as stream:
        assert (stream, entered) == (7, [1])


def test_auto_asks_it_before_the_processor() -> None:
    order = backends()
    assert all(order.index("cuda") < order.index(x) for x in ("cpu", "reference") if x in order)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_why_and_others_run() -> None:
    answers = explain(X, X, X)

    assert answers["cuda"] == device.find_fault()
    assert "accepts" in answers.values()
    condition = next(x.condition for x in installed_backends() if x.name == "cuda")
    assert condition == f"not usable here: {answers['cuda']}"


@pytest.mark.parametrize(
    ("built_with", "hip", "torch_built", "says"),
    [
        ("", None, True, "install linattn-triton"),
        ("nvcc", "6.4", True, "install linattn-triton"),
        ("nvcc", None, False, "without CUDA"),
        ("nvcc", None, True, "no GPU"),
    ],
)
def test_what_is_missing_is_said(
    built_with: str,
    hip: str | None,
    torch_built: bool,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "_native", SimpleNamespace(built_with=built_with))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: torch_built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "find_build_fault", device.find_build_fault.__wrapped__)
    missing = device.find_fault.__wrapped__()
    monkeypatch.setattr(backend, "find_build_fault", device.find_build_fault)
    monkeypatch.setattr(backend, "find_fault", lambda: missing)

    assert missing is not None and says in missing
    assert CudaBackend().unusable() == missing
    assert CudaBackend().refuses_device(torch.device("cuda")) == missing


def test_calls_on_the_cpu_do_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has started CUDA cannot be forked, as data loaders do."""

    def started() -> str:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(backend, "find_build_fault", lambda: None)
    monkeypatch.setattr(backend, "find_fault", started)
    monkeypatch.setattr(torch.cuda, "is_available", started)

    for call in (CALL, STEP):
        assert "these are on cpu" in str(CudaBackend().refuses(call))


def wide_call(dim: int, value_dim: int = 64, dtype: torch.dtype = torch.float32) -> AttentionCall:
    query, value = (torch.zeros(1, dtype=dtype).expand(1, 2, 8, x) for x in (dim, value_dim))
    return CALL._replace(query=query, key=query, value=value)


def wide_step(dim: int) -> StepCall:
    query = torch.zeros(1, 2, dim)
    return STEP._replace(query=query, key=query)


def long_call(length: int) -> AttentionCall:
    x = torch.zeros(1, 1, 1, 1).expand(1, 1, length, 1)
    return AttentionCall(x, x, x, True)


@pytest.mark.parametrize(
    ("gpu", "call", "named"),
    [
        (H100, wide_call(64, dtype=torch.float64), "float64"),
        (H100, CALL._replace(log_decay=torch.zeros(1, 2, 8)), "log_decay"),
        (H100, STEP._replace(log_decay=torch.zeros(1, 2)), "log_decay"),
        (V100, CALL, "compute capability 7.5"),
        (V100, STEP, "compute capability 7.5"),
        (H100, wide_call(257), "257"),
        (H100, wide_call(2**31, 2**33), "2,147,483,648"),
        (H100, wide_step(8_000), "256,016 bytes of shared memory"),
        (T4, wide_call(256, 256), "bytes of shared memory"),
        (H100, long_call(2**31), "2,147,483,648"),
    ],
)
def test_what_has_no_kernel_is_refused(
    gpu: Gpu, call: AttentionCall | StepCall, named: str, emulation: object
) -> None:
    assert named in str(EmulatedBackend(gpu).refuses(call))


def test_all_other_arguments_are_accepted(emulation: object) -> None:
    """The contract suite skips what a backend refuses: this holds what must not be refused."""
    state = LinearAttentionState.zeros(1, 2, 64, 64)
    one_head = {"key": CALL.key[:, :1], "value": CALL.value[:, :1]}
    accepted = (
        CALL._replace(normalize=False, return_normalizer=True),
        CALL._replace(is_causal=False, initial_state=state),
        CALL._replace(**one_head),
        STEP._replace(state_indices=torch.tensor([0]), normalize=False),
        wide_call(256, 256),
        wide_step(4_161),
        long_call(2**31 - 1),
    )
    assert [EmulatedBackend().refuses(call) for call in accepted] == [None] * len(accepted)


@pytest.mark.parametrize(
    ("dtype", "widest"), [(torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 64)], ids=str
)
def test_a_gpu_takes_all_heads_up_to_its_widest(
    dtype: torch.dtype, widest: int, emulation: object
) -> None:
    """A wider head never needs less memory than there is where a narrower one needs more."""
    backend = EmulatedBackend(T4)
    accepted = []
    for width in (1, 32, 33, 64, 65, 128, 129, 256):
        x = torch.zeros(1, 2, 8, width, dtype=dtype)
        if backend.refuses(CALL._replace(query=x, key=x, value=x)) is None:
            accepted.append(width)

    assert accepted == [x for x in (1, 32, 33, 64, 65, 128) if x <= widest]


def test_native_code_reads_a_call_once(emulation: ModuleType) -> None:
    """Of each size, the first call also asks for a plan."""
    asked: list[str] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            if name.startswith(("attention_", "plan_")):
                asked.append(name)
            return getattr(emulation, name)

    backend = EmulatedBackend(native=cast(ModuleType, Recording()))
    backend.segments = None
    plain = CALL._replace(requires_grad=False)
    for call in (plain, plain, CALL._replace(is_causal=False), plain):
        asked.append("|")
        assert backend.refuses(call) is None
        backend.attention(call)
    planned = ["plan_forward", "attention_forward"]
    assert asked == [
        "|", *planned, "|", "attention_forward", "|", *planned, "|", "attention_forward",
    ]  # fmt: skip


def test_a_call_crosses_few_functions(emulation: object) -> None:
    """The host's time limits short calls on a GPU. Those of torch and Python are not counted."""
    x = torch.zeros(1, 2, 8, 16, dtype=torch.bfloat16)
    crossed: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/linattn_" in frame.f_code.co_filename:
            crossed.append(frame.f_code.co_name)

    for _ in range(2):
        crossed.clear()
        sys.setprofile(profile)
        try:
            linear_attention(x, x, x, is_causal=True, backend=WALKING)
        finally:
            sys.setprofile(None)
    assert len(crossed) <= 26, crossed


ALL = "nvcc 13.0 for sm 75, 80, 90, 100, 120, PTX 120"


@pytest.mark.parametrize(
    ("capability", "built_with", "runs"),
    [
        ((9, 0), ALL, True),
        ((8, 9), ALL, True),
        ((10, 3), ALL, True),
        ((12, 1), ALL, True),
        ((13, 0), ALL, True),
        ((11, 0), ALL, False),
        ((8, 0), "nvcc 13.0 for sm 90, PTX 90", False),
        ((10, 0), "nvcc 13.0 for sm 90, PTX 90", True),
        ((10, 0), "nvcc 13.0 for sm 90", False),
        ((9, 0), "nvcc 13.0 for sm 90a", True),
        ((10, 3), "nvcc 13.0 for sm 100a", False),
        ((10, 3), "nvcc 13.0 for sm 100f", True),
        ((12, 0), "nvcc 13.0 for sm PTX 90", True),
    ],
)
def test_gpus_that_nothing_was_built_for_are_refused(
    capability: tuple[int, int], built_with: str, runs: bool
) -> None:
    reason = device.find_missing_code(H100._replace(capability=capability), built_with)
    assert (reason is None) == runs


def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(index: int) -> None:
        raise RuntimeError("the CUDA driver did not start.")

    module = SimpleNamespace(built_with="nvcc 13.0 for sm 90", device_attributes=failing)
    monkeypatch.setattr(device, "_native", module)
    monkeypatch.setattr(device, "find_build_fault", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    assert str(device.find_fault.__wrapped__()).startswith("the CUDA driver did not start.")


SWITCHES = {
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "high",
    "torch.backends.fp32_precision = 'tf32'": "high",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'": "highest",
    "torch.backends.cuda.matmul.allow_tf32 = True": "high",
    "torch.set_float32_matmul_precision('high')": "high",
    "pass": "highest",
}
# A process each, as torch's switches cannot be mixed.
ASK_PRECISIONS = f"""
import os, torch
from types import SimpleNamespace
from linattn_cuda.backend import CudaBackend
backend = CudaBackend()
backend.native = SimpleNamespace(Precision=SimpleNamespace(high="high", highest="highest"))
for switch in {list(SWITCHES)}:
    child = os.fork()
    if child == 0:
        exec(switch)
        print(backend._precision(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_every_switch_of_torch_sets_the_precision() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK_PRECISIONS],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout.split() == list(SWITCHES.values()), ended.stderr
