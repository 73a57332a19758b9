"""What only a GPU can show of the backend "cuda" alone; tests/gpu has what both GPU backends do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.registry import find_backend
from tests.contract.agreement import assert_within_budget
from tests.contract.cases import Case
from tests.cuda.layouts import LAYOUTS
from tests.gpu.calls import DTYPES, NEEDS_GPU, attend, draw, skip_unusable

pytestmark = NEEDS_GPU


@pytest.fixture(autouse=True)
def _usable() -> None:
    skip_unusable("cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 16, 32, 40, 64, 96, 128])
def test_every_width(width: int, dtype: torch.dtype) -> None:
    case = Case(heads=2, queries=300, head_dim=width, value_dim=width, dtype=dtype)
    with torch.device("cuda"):
        assert_within_budget(case, "cuda")
        assert_within_budget(case.with_(is_causal=False), "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_give_what_walking_gives(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = draw(1, 60, 32_768, 64, dtype=dtype)
    monkeypatch.setattr(find_backend("cuda"), "segments", 64)
    first, second = attend(tensors, "cuda"), attend(tensors, "cuda")
    monkeypatch.setattr(find_backend("cuda"), "segments", 1)

    for x, again, walked in zip(first, second, attend(tensors, "cuda"), strict=True):
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [40, 64])
def test_any_layout_is_read(dtype: torch.dtype, dim: int) -> None:
    """The kernels of 64 dims in bfloat16 take aligned rows alone; the others round differently."""
    plain = draw(2, 3, 200, dim, dtype=dtype)
    expected = attend(plain, "cuda")
    for name, layout in LAYOUTS.items():
        found = attend([layout(x) for x in plain], "cuda")
        is_rounded = dim == 64 and dtype == torch.bfloat16 and name != "length first"
        for x, y in zip(found, expected, strict=True):
            assert (x - y).abs().max() <= is_rounded * 2**-6 * y.abs().max(), name


def test_a_launch_that_the_gpu_refuses_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend knows how wide a step may be; here it is kept from saying so."""
    monkeypatch.setattr(find_backend("cuda"), "_refuses_width", lambda call, gpu: None)
    state = LinearAttentionState.zeros(1, 1, 100_000, 1, device="cuda")
    q, v = torch.zeros(1, 1, 100_000, device="cuda"), torch.zeros(1, 1, 1, device="cuda")

    refused = r"kernel step\S* failed: (cudaErrorInvalidValue|CUDA_ERROR_INVALID_VALUE) \(1\)"
    with pytest.raises(RuntimeError, match=refused):
        linear_attention_step(q, q, v, state, backend="cuda")
