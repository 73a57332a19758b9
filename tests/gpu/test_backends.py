"""What only a GPU can show of both backends: kernels beside the oracle, streams, graphs, same bits.

What one of them alone promises is in tests/cuda/test_gpu.py.
"""

from __future__ import annotations

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
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case
from tests.gpu.calls import DTYPES, NEEDS_GPU, attend, draw, skip_unusable

pytestmark = NEEDS_GPU
CASES = [
    Case(batch=1, heads=2, queries=4_096, head_dim=64, value_dim=64),
    Case(batch=1, heads=2, queries=4_096, head_dim=128, value_dim=128, initial_state=True),
    Case(batch=1, heads=2, queries=4_096, head_dim=64, value_dim=64, is_causal=False),
    Case(batch=2, heads=150, queries=200, head_dim=64, value_dim=64),
    Case(batch=2, heads=300, queries=200, head_dim=64, value_dim=64),
    Case(batch=2, heads=150, queries=200, head_dim=128, value_dim=128),
    Case(batch=2, heads=4, kv_heads=2, queries=300, head_dim=64, value_dim=64, mask="gaps"),
    Case(queries=130, head_dim=256, value_dim=256),
    Case(queries=130, head_dim=33, value_dim=200, is_causal=False),
]
DECAYS = [
    Case(queries=300, head_dim=64, value_dim=64, log_decay="positions", initial_state=True),
    Case(heads=4, kv_heads=2, queries=300, head_dim=128, value_dim=64, log_decay="resets"),
]


@pytest.fixture(params=["cuda", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    skip_unusable(request.param)
    return str(request.param)


def test_it_takes_what_is_on_a_gpu(backend: str) -> None:
    assert explain(*draw(1, 2, 8, 64))[backend] == "accepts"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_within_budget(case: Case, dtype: torch.dtype, backend: str) -> None:
    with torch.device("cuda"):
        assert_within_budget(case.with_(dtype=dtype), backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", DECAYS, ids=str)
def test_decay_within_budget(case: Case, dtype: torch.dtype) -> None:
    skip_unusable("triton")
    with torch.device("cuda"):
        assert_within_budget(case.with_(dtype=dtype), "triton")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 512])
def test_the_same_bits_twice(heads: int, dtype: torch.dtype, backend: str) -> None:
    tensors = draw(1, heads, 5_000, 64, dtype=dtype)
    first, second = attend(tensors, backend), attend(tensors, backend)

    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_it_runs_on_the_callers_stream(backend: str) -> None:
    """Inputs that a long kernel of the same stream still writes are waited for by that stream."""
    tensors = draw(1, 64, 4_096, 64)
    expected = attend(tensors, backend)
    late = [torch.zeros_like(x) for x in tensors]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for x, y in zip(late, tensors, strict=True):
            x.copy_(y)
        found = attend(late, backend)
    stream.synchronize()

    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_lengths_on_the_cpu_are_refused_in_a_graph(backend: str) -> None:
    tensors, lengths = draw(1, 1, 8, 8), torch.tensor([5])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="move it to cuda"):
            linear_attention(*tensors, is_causal=True, key_lengths=lengths, backend=backend)
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("heads", [1, 200], ids=["few", "many"])
def test_a_graph_replays_a_call_with_lengths(heads: int, backend: str) -> None:
    tensors = draw(2, heads, 3_000, 64)
    lengths = torch.tensor([3_000, 1_700], device="cuda")

    def call() -> Tensor:
        return linear_attention(*tensors, is_causal=True, key_lengths=lengths, backend=backend)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for new, length in zip(draw(3, heads, 3_000, 64), (1_000, 0, 2_999), strict=False):
        tensors[0].copy_(new[:1].expand_as(tensors[0]))
        lengths[1] = length
        graph.replay()
        assert torch.equal(captured, call())


def test_a_graph_replays_steps_on_slots(backend: str) -> None:
    q, k, v = (torch.randn(9, 8, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    state = LinearAttentionState.zeros(12, 8, 32, 32, device="cuda")
    slots = torch.tensor([3, -1, 0, 1, 2, 11, 10, -1, 5], device="cuda")

    def step(state: LinearAttentionState, backend: str) -> Tensor:
        return linear_attention_step(
            q, k, v, state, state_indices=slots, inplace=True, backend=backend
        )[0]

    step(state.clone(), backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(state, backend)
    eager = LinearAttentionState.zeros(12, 8, 32, 32, device="cuda")
    for _ in range(5):
        graph.replay()
        torch.testing.assert_close(captured, step(eager, "reference"))
    torch.testing.assert_close(tuple(state), tuple(eager))


def test_every_output_is_written(backend: str) -> None:
    tensors = draw(2, 2, 5_000, 24)
    lengths = torch.tensor([5_000, 0])
    torch.use_deterministic_algorithms(True)
    try:
        found = attend(tensors, backend, key_lengths=lengths)
    finally:
        torch.use_deterministic_algorithms(False)

    assert all(torch.isfinite(x).all() for x in found)


@pytest.mark.slow
def test_past_two_to_the_31_elements(backend: str) -> None:
    """The last head of tensors that no 32 bits can index begins as it does alone."""
    needed, free = 40 * 2**30, torch.cuda.mem_get_info()[0]
    if free < needed:
        pytest.skip(f"needs {needed >> 30} GiB of the GPU's memory, and {free >> 30} GiB are free")
    shape = (1, 520, 2**16, 64)
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert tensors[0].numel() > 2**31
    out, grad_query, *_ = (x[:, -1:, :2_000] for x in attend(tensors, backend))
    query, key, value = (x[:, -1:, :2_000].double().requires_grad_() for x in tensors)
    exact = reference.quadratic(query, key, value, is_causal=True)
    (exact_grad,) = torch.autograd.grad(exact.sum(), query)

    torch.testing.assert_close(out.double(), exact.detach(), rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(grad_query.double(), exact_grad, rtol=2**-6, atol=2**-6)
