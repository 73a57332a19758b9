"""The memory of large results: later results use it again, and never see what it held."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from linattn_core import empty_cache, linear_attention
from linattn_cpu import memory
from linattn_cpu._native import CachedMemory

LENGTH = 4096  # an output of 4 MiB


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    gc.collect()
    empty_cache()
    yield
    empty_cache()


def inputs(length: int = LENGTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, 8, length, 32, generator=generator, requires_grad=True) for _ in range(3)
    ]


def attend(tensors: list[Tensor]) -> Tensor:
    return linear_attention(*tensors, is_causal=True, backend="cpu")


@torch.no_grad()
def test_a_freed_result_leaves_its_memory_to_the_next() -> None:
    tensors = inputs()
    out = attend(tensors)
    address, size = out.data_ptr(), out.nbytes
    del out
    assert CachedMemory.kept() == size
    assert attend(tensors).data_ptr() == address


def test_a_view_keeps_the_memory() -> None:
    tensors = inputs()
    with torch.no_grad():
        view = attend(tensors)[0, 0, :2]
    assert CachedMemory.kept() == 0
    del view
    assert CachedMemory.kept() > 0


@pytest.mark.parametrize("length", [LENGTH, LENGTH + 3])
def test_results_do_not_depend_on_what_the_memory_held(length: int) -> None:
    tensors = inputs(length)

    def results() -> list[Tensor]:
        out = attend(tensors)
        return [out, *torch.autograd.grad(out.square().sum(), tensors)]

    wanted = [x.detach().clone() for x in results()]
    dirty = [memory.empty_like(x).fill_(torch.nan) for x in wanted]
    used = CachedMemory.kept()
    del dirty
    assert CachedMemory.kept() > used
    assert all(torch.equal(x, y) for x, y in zip(results(), wanted, strict=True))


def test_blocks_fit_what_is_asked() -> None:
    freed = memory.empty(1, 1, 8 << 20, 1, dtype=torch.float32)  # 32 MiB
    address = freed.data_ptr()
    del freed
    small = memory.empty(1, 1, 1 << 20, 1, dtype=torch.float32)
    assert small.data_ptr() != address
    assert memory.empty(1, 1, 5 << 20, 1, dtype=torch.float32).data_ptr() == address
    large = memory.empty(1, 1, 9 << 20, 1, dtype=torch.float32)
    assert large.nbytes == 36 << 20
    large.fill_(1)
    assert bool(large.eq(1).all())


def test_no_more_is_kept_than_the_documentation_says() -> None:
    blocks = [memory.empty(1, 1, 16 << 20, 1, dtype=torch.float32) for _ in range(6)]
    blocks.append(memory.empty(1, 1, 96 << 20, 1, dtype=torch.float32))  # too large on its own
    while blocks:
        blocks.pop()
        assert CachedMemory.kept() <= CachedMemory.most_kept == 256 << 20
    assert CachedMemory.kept() == 256 << 20
    memory.empty(1, 1, 96 << 20, 1, dtype=torch.float32)
    assert CachedMemory.kept() == 256 << 20  # a block that is too large displaces no others


@torch.no_grad()
def test_empty_cache_keeps_live_results() -> None:
    tensors = inputs()
    out = attend(tensors)
    before = out.clone()
    attend(tensors)
    assert CachedMemory.kept() > 0
    empty_cache()
    assert CachedMemory.kept() == 0
    assert torch.equal(out, before)


@torch.no_grad()
def test_small_results_do_not_take_part() -> None:
    attend(inputs(16))
    assert CachedMemory.kept() == 0


def test_what_is_kept_is_given_back_before_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(CachedMemory):
        def __init__(self, size: int) -> None:
            raise MemoryError

    freed = memory.empty(1, 1, 1 << 20, 1, dtype=torch.float32)
    del freed
    assert CachedMemory.kept() > 0
    monkeypatch.setattr(memory, "CachedMemory", Full)
    tensors = inputs()
    with torch.no_grad():
        out = attend(tensors)
    assert CachedMemory.kept() == 0
    with torch.no_grad():
        wanted = linear_attention(*tensors, is_causal=True, backend="reference")
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_results_can_be_saved_shared_and_changed() -> None:
    out = attend(inputs())
    before = out.clone()
    assert torch.equal(pickle.loads(pickle.dumps(out)), before)
    assert torch.equal(out.share_memory_(), before)
    assert torch.equal(out.mul_(2), 2 * before)
    with torch.inference_mode():
        assert attend(inputs()).is_inference()
