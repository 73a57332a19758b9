"""Every rung against the float64 definition, on the emulation; marked gpu, on a GPU."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from linattn_core import linear_attention, reference
from linattn_core.calls import AttentionCall
from linattn_core.pointwise import apply
from linattn_cuda import _native
from linattn_cuda.prototypes import LADDER, Rung
from linattn_cuda.prototypes.ladder import DTYPES, Arguments, Problem, find_fault
from tests.contract.budgets import budget, error
from tests.cuda.emulated_build import ladder_library
from tests.cuda.layouts import LAYOUTS

EPS = 1e-6

# B, H, N, D, M; what harness.cpp is compiled for.
SMALL = (2, 3, 37, 11, 7)
SHAPES = {
    torch.float32: [(1, 2, 130, 48, 32), (1, 1, 64, 40, 24)],
    torch.bfloat16: [(1, 2, 130, 80, 64), (1, 1, 129, 72, 56)],
    torch.float16: [(1, 2, 130, 16, 16)],
}


def launch(rung: Rung, problem: Problem, arguments: Arguments, like: Tensor) -> None:
    """Runs the rung's kernels on CPU tensors, in place of a GPU."""
    library = ladder_library()
    dtype = int(_native.Dtype.__members__[DTYPES[like.dtype]])
    for kernel, (x, y), threads, shared in rung.plan(problem):
        error = library.run_prototype(
            kernel.encode(), dtype, problem.dim, problem.value_dim, ctypes.c_longlong(x), y,
            threads, shared, ctypes.byref(arguments),
        )  # fmt: skip
        assert error != -1, f"harness.cpp compiles no {kernel} for {like.dtype, problem}"
        assert error != -2, library.prototype_message().decode()
        assert error == 0, f"CUDA error {error} of {kernel}"


def draw(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Query, key, value."""
    batch, heads, length, dim, value_dim = shape
    drawn = [torch.randn(batch, heads, length, x) for x in (dim, dim, value_dim)]
    return [x.to(device, dtype) for x in drawn]


def denominators(query: Tensor, key: Tensor, feature_map: str) -> Tensor:
    """phi(q_i) . z_i + eps, (B, H, N)."""
    query, key = (apply(feature_map, x) for x in (query, key))
    return (query * key.cumsum(2)).sum(-1) + EPS


def assert_exact(
    rung: Rung, tensors: list[Tensor], out: Tensor, normalizer: Tensor, feature_map: str = "elu"
) -> None:
    """Within the budget of the dtype that the rung computes in."""
    dtype = tensors[0].dtype
    computed = dtype if dtype in rung.keeps else torch.bfloat16
    options = {"is_causal": True, "feature_map": feature_map}
    oracle = reference.quadratic(*(x.double() for x in tensors), **options)
    own = reference.quadratic(*(x.to(computed) for x in tensors), **options)
    allowed = budget("cupy", "out", error(own, oracle), oracle, computed)
    assert out.dtype == dtype and out.is_contiguous()
    assert torch.isfinite(out).all()
    assert error(out, oracle) <= allowed, f"{error(out, oracle)} > {allowed}"
    expected = denominators(*(x.double() for x in tensors[:2]), feature_map)
    torch.testing.assert_close(
        normalizer.double(), expected, rtol=2 * torch.finfo(computed).eps + 1e-5, atol=1e-4
    )


@pytest.fixture(params=LADDER.values(), ids=list(LADDER))
def rung(request: pytest.FixtureRequest) -> Rung:
    return request.param


def run(
    rung: Rung, tensors: list[Tensor], feature_map: str = "elu", multiprocessors: int = 1
) -> Tensor:
    call = AttentionCall(*tensors, True, feature_map, eps=EPS)
    out, normalizer, state = rung.launch(call, launch, multiprocessors)
    assert state is None
    assert_exact(rung, tensors, out, normalizer, feature_map)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_within_budget(rung: Rung, dtype: torch.dtype) -> None:
    for shape in (SMALL, *SHAPES[dtype]):
        run(rung, draw(shape, dtype))


def test_every_length(rung: Rung) -> None:
    for length in (1, 15, 16, 17, 63, 64, 65, 128):
        run(rung, draw((1, 1, length, 16, 16), torch.bfloat16))


@pytest.mark.parametrize("feature_map", ["relu", "identity"])
def test_feature_maps(rung: Rung, feature_map: str) -> None:
    query, key, value = draw(SMALL, torch.float32)

    run(rung, [query.abs(), key.abs(), value], feature_map)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_do_not_matter(rung: Rung, dtype: torch.dtype) -> None:
    tensors = draw((2, 3, 70, 16, 16), dtype)
    expected = run(rung, tensors)

    for name, layout in LAYOUTS.items():
        assert torch.equal(run(rung, [layout(x) for x in tensors]), expected), name


def test_a_shared_key_head_is_read_in_place(rung: Rung) -> None:
    query, key, value = draw((1, 3, 40, 16, 16), torch.float32)
    shared = key[:, :1].expand(-1, 3, -1, -1)

    assert torch.equal(run(rung, [query, shared, value]),
                       run(rung, [query, shared.contiguous(), value]))  # fmt: skip


def test_the_future_does_not_touch_the_past(rung: Rung) -> None:
    tensors = draw((1, 2, 130, 16, 16), torch.bfloat16)
    before = run(rung, tensors)
    changed = [x.clone() for x in tensors]
    for x in changed:
        x[:, :, 67:] = 3

    assert torch.equal(run(rung, changed)[:, :, :67], before[:, :, :67])


def test_empty_heads_and_empty_sequences(rung: Rung) -> None:
    for shape in ((1, 2, 5, 0, 16), (1, 2, 5, 16, 0), (1, 2, 0, 16, 16), (0, 2, 5, 16, 16)):
        call = AttentionCall(*draw(shape, torch.float32), True, eps=EPS)
        out, normalizer, _ = rung.launch(call, launch, 1)
        assert out.shape == (*shape[:3], shape[4]) and not out.any()
        assert normalizer.shape == shape[:3]


def test_the_order_of_threads_does_not_matter(rung: Rung) -> None:
    tensors = draw((1, 2, 130, 16, 16), torch.bfloat16)
    plain = run(rung, tensors)
    try:
        for order in (-1, 1, 2):
            ladder_library().set_prototype_order(order)
            assert torch.equal(run(rung, tensors), plain)
    finally:
        ladder_library().set_prototype_order(0)


@pytest.mark.parametrize("length", [1024, 1100, 2049])
def test_a_split_sequence(length: int) -> None:
    tensors = draw((1, 2, length, 16, 16), torch.float32)

    for multiprocessors in (1, 132):  # two segments; as many as are worth it
        run(LADDER["split"], tensors, multiprocessors=multiprocessors)


needs_gpu = pytest.mark.skipif(find_fault() is not None, reason=str(find_fault()))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 40, 64, 128])
def test_on_a_gpu(rung: Rung, dtype: torch.dtype, dim: int) -> None:
    for length in (1, 64, 1000, 3001):
        tensors = draw((2, 3, length, dim, dim), dtype, "cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
            out, normalizer, _ = rung.run(AttentionCall(*moved, True, eps=EPS))
        torch.cuda.synchronize()
        assert_exact(rung, tensors, out, normalizer)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_backend_on_a_gpu(dtype: torch.dtype) -> None:
    tensors = draw((2, 3, 700, 64, 64), dtype, "cuda")
    last = "split" if dtype == torch.bfloat16 else "chunked"

    out = linear_attention(*tensors, is_causal=True, backend="cupy")

    assert torch.equal(out, LADDER[last].attention(*tensors))


@pytest.mark.gpu
@needs_gpu
def test_a_capture_in_a_graph(rung: Rung) -> None:
    tensors = draw((1, 2, 2000, 64, 64), torch.bfloat16, "cuda")
    expected = rung.attention(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rung.attention(*tensors)
    out.zero_()
    graph.replay()

    assert torch.equal(out, expected)
