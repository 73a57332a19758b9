"""What only a GPU can show: streams, graphs, large tensors, the same bits twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    explain,
    linear_attention,
    linear_attention_step,
    reference,
)
from linattn_core.registry import find_backend
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case
from tests.cuda.layouts import LAYOUTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("gpu"),  # one worker, as all would share the GPU's memory
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _usable() -> None:
    reason = find_backend("cuda").unusable()
    if reason is not None:
        pytest.skip(reason)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value on the GPU."""
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]


def attend(tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Output and gradients of a causal call."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = linear_attention(*leaves, is_causal=True, backend="cuda", **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def test_it_takes_what_is_on_a_gpu() -> None:
    assert explain(*draw(1, 2, 8, 64))["cuda"] == "accepts"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 16, 32, 40, 64, 96, 128])
def test_every_width(width: int, dtype: torch.dtype) -> None:
    case = Case(heads=2, queries=300, head_dim=width, value_dim=width, dtype=dtype)
    with torch.device("cuda"):
        assert_within_budget(case, "cuda")
        assert_within_budget(case.with_(is_causal=False), "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 512])
def test_the_same_bits_twice(heads: int, dtype: torch.dtype) -> None:
    tensors = draw(1, heads, 5_000, 64, dtype=dtype)
    first, second = attend(tensors), attend(tensors)

    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_it_runs_on_the_callers_stream() -> None:
    """Inputs that a long kernel of the same stream still writes are waited for by that stream."""
    tensors = draw(1, 64, 4_096, 64)
    expected = attend(tensors)
    late = [torch.zeros_like(x) for x in tensors]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for x, y in zip(late, tensors, strict=True):
            x.copy_(y)
        found = attend(late)
    stream.synchronize()

    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_give_what_walking_gives(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = draw(1, 60, 32_768, 64, dtype=dtype)
    monkeypatch.setattr(find_backend("cuda"), "segments", 64)
    first, second = attend(tensors), attend(tensors)
    monkeypatch.setattr(find_backend("cuda"), "segments", 1)

    for x, again, walked in zip(first, second, attend(tensors), strict=True):
        assert torch.equal(x, again)
        difference = (x - walked).abs().max().item()
        assert difference <= 2**-6 * walked.abs().max().item()


def test_a_graph_replays_segments() -> None:
    tensors = draw(1, 60, 32_768, 64, dtype=torch.bfloat16)

    def call() -> Tensor:
        return linear_attention(*tensors, is_causal=True, backend="cuda")

    expected = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for _ in range(50):
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, expected)


def test_lengths_on_the_cpu_are_refused_in_a_graph() -> None:
    tensors, lengths = draw(1, 1, 8, 8), torch.tensor([5])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="move it to cuda"):
            linear_attention(*tensors, is_causal=True, key_lengths=lengths, backend="cuda")
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("heads", [1, 200], ids=["segments", "walking"])
def test_a_graph_replays_a_call_with_lengths(heads: int) -> None:
    tensors = draw(2, heads, 3_000, 64)
    lengths = torch.tensor([3_000, 1_700], device="cuda")

    def call() -> Tensor:
        return linear_attention(*tensors, is_causal=True, key_lengths=lengths, backend="cuda")

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for new, length in zip(draw(3, heads, 3_000, 64), (1_000, 0, 2_999), strict=False):
        tensors[0].copy_(new[:1].expand_as(tensors[0]))
        lengths[1] = length
        graph.replay()
        assert torch.equal(captured, call())


def test_a_graph_replays_steps() -> None:
    q, k, v = (torch.randn(100, 8, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    state = LinearAttentionState.zeros(100, 8, 32, 32, device="cuda")

    def step(state: LinearAttentionState) -> Tensor:
        return linear_attention_step(q, k, v, state, inplace=True, backend="cuda")[0]

    step(state.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(state)
    eager = LinearAttentionState.zeros(100, 8, 32, 32, device="cuda")
    for _ in range(5):
        graph.replay()
        assert torch.equal(captured, step(eager))
    assert torch.equal(state.s, eager.s) and torch.equal(state.z, eager.z)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_is_read(dtype: torch.dtype) -> None:
    plain = draw(2, 3, 200, 64, dtype=dtype)
    expected = attend(plain)
    for name, layout in LAYOUTS.items():
        found = attend([layout(x) for x in plain])
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True)), name


def test_every_output_is_written() -> None:
    tensors = draw(2, 2, 5_000, 24)
    lengths = torch.tensor([5_000, 0])
    torch.use_deterministic_algorithms(True)
    try:
        found = attend(tensors, key_lengths=lengths)
    finally:
        torch.use_deterministic_algorithms(False)

    assert all(torch.isfinite(x).all() for x in found)


@pytest.mark.slow
def test_past_two_to_the_31_elements() -> None:
    """The last head of tensors that no 32 bits can index begins as it does alone."""
    needed, free = 40 * 2**30, torch.cuda.mem_get_info()[0]
    if free < needed:
        pytest.skip(f"needs {needed >> 30} GiB of the GPU's memory, and {free >> 30} GiB are free")
    shape = (1, 520, 2**16, 64)
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert tensors[0].numel() > 2**31
    out, grad_query, *_ = (x[:, -1:, :2_000] for x in attend(tensors))
    query, key, value = (x[:, -1:, :2_000].double().requires_grad_() for x in tensors)
    exact = reference.quadratic(query, key, value, is_causal=True)
    (exact_grad,) = torch.autograd.grad(exact.sum(), query)

    torch.testing.assert_close(out.double(), exact.detach(), rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(grad_query.double(), exact_grad, rtol=2**-6, atol=2**-6)


def test_a_launch_that_the_gpu_refuses_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend knows how wide a step may be; here it is kept from saying so."""
    monkeypatch.setattr(find_backend("cuda"), "_refuses_width", lambda call, gpu: None)
    state = LinearAttentionState.zeros(1, 1, 100_000, 1, device="cuda")
    q, v = torch.zeros(1, 1, 100_000, device="cuda"), torch.zeros(1, 1, 1, device="cuda")

    refused = r"kernel step\S* failed: (cudaErrorInvalidValue|CUDA_ERROR_INVALID_VALUE) \(1\)"
    with pytest.raises(RuntimeError, match=refused):
        linear_attention_step(q, q, v, state, backend="cuda")
