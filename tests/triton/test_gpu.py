"""What only a GPU can show: compiled kernels beside the oracle, streams, graphs, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_core import LinearAttentionState, explain, linear_attention, linear_attention_step
from linattn_core.registry import find_backend
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.xdist_group("gpu"),  # one worker, as all would share the GPU's memory
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = [
    Case(batch=1, heads=2, queries=4_096, head_dim=64, value_dim=64),
    Case(batch=1, heads=2, queries=4_096, head_dim=128, value_dim=128, initial_state=True),
    Case(batch=1, heads=2, queries=4_096, head_dim=64, value_dim=64, is_causal=False),
    Case(batch=2, heads=150, queries=200, head_dim=64, value_dim=64),
    Case(batch=2, heads=150, queries=200, head_dim=128, value_dim=128),
    Case(batch=2, heads=4, kv_heads=2, queries=300, head_dim=64, value_dim=64, mask="gaps"),
    Case(queries=300, head_dim=64, value_dim=64, log_decay="positions", initial_state=True),
    Case(queries=130, head_dim=256, value_dim=256),
    Case(queries=130, head_dim=33, value_dim=200, is_causal=False),
]


@pytest.fixture(autouse=True)
def _usable() -> None:
    reason = find_backend("triton").unusable()
    if reason is not None:
        pytest.skip(reason)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value on the GPU."""
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]


def attend(tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Output and gradients of a causal call."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = linear_attention(*leaves, is_causal=True, backend="triton", **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def test_it_takes_what_is_on_a_gpu() -> None:
    assert explain(*draw(1, 2, 8, 64))["triton"] == "accepts"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_within_budget(case: Case, dtype: torch.dtype) -> None:
    with torch.device("cuda"):
        assert_within_budget(case.with_(dtype=dtype), "triton")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 300])
def test_the_same_bits_twice(heads: int, dtype: torch.dtype) -> None:
    tensors = draw(1, heads, 2_000, 64, dtype=dtype)
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


def test_a_graph_replays_steps_on_slots() -> None:
    q, k, v = (torch.randn(9, 8, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    state = LinearAttentionState.zeros(12, 8, 32, 32, device="cuda")
    slots = torch.tensor([3, -1, 0, 1, 2, 11, 10, -1, 5], device="cuda")

    def step(state: LinearAttentionState, backend: str) -> Tensor:
        return linear_attention_step(
            q, k, v, state, state_indices=slots, inplace=True, backend=backend
        )[0]

    step(state.clone(), "triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(state, "triton")
    eager = LinearAttentionState.zeros(12, 8, 32, 32, device="cuda")
    for _ in range(5):
        graph.replay()
        torch.testing.assert_close(captured, step(eager, "reference"))
    torch.testing.assert_close(tuple(state), tuple(eager))
