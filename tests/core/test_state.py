"""The state: sizes, dtypes, and what beam search does to it."""

from __future__ import annotations

import pytest
import torch

from linattn_core import LinearAttentionState, linear_attention_step


def state() -> LinearAttentionState:
    return LinearAttentionState(torch.randn(4, 2, 3, 5), torch.rand(4, 2, 3))


@pytest.mark.parametrize(
    ("inputs", "sums"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_dtype_of_the_sums(inputs: torch.dtype, sums: torch.dtype) -> None:
    zeros = LinearAttentionState.zeros(4, 2, 3, 5, dtype=inputs)
    assert {x.dtype for x in zeros} == {sums}
    assert zeros.nbytes == 4 * 2 * 3 * (5 + 1) * sums.itemsize


def test_select_forks_reorders_and_drops_as_copies() -> None:
    before = state()
    picked = before.index_select(torch.tensor([2, 2, 0]))
    assert torch.equal(picked.s[0], before.s[2])
    assert torch.equal(picked.z[2], before.z[0])
    q, k, v = torch.rand(3, 2, 3), torch.rand(3, 2, 3), torch.rand(3, 2, 5)
    copy = before.clone()
    linear_attention_step(q, k, v, picked, inplace=True)
    assert torch.equal(before.s, copy.s)
    assert not torch.equal(picked.s[0], picked.s[1])  # the fork's two branches went apart


def test_cat_joins_batches() -> None:
    a, b = state(), state()
    joined = LinearAttentionState.cat([a, b])
    assert torch.equal(joined.s[4:], b.s)
    assert torch.equal(joined.z[:4], a.z)
    with pytest.raises(ValueError, match="states"):
        LinearAttentionState.cat([])


@pytest.mark.parametrize("sizes", [1, 3, [1, 0, 3]])
def test_split_is_the_inverse_of_cat(sizes: int | list[int]) -> None:
    whole = state()
    parts = whole.split(sizes)
    joined = LinearAttentionState.cat(parts)
    assert torch.equal(joined.s, whole.s) and torch.equal(joined.z, whole.z)
    parts[-1].s.zero_()  # views: a server's slots are written where they lie
    assert not whole.s[-1].any()


def test_clone_detach_and_to() -> None:
    x = LinearAttentionState(*(t.requires_grad_() for t in state()))
    assert x.clone().s.data_ptr() != x.s.data_ptr()
    assert not x.detach().s.requires_grad
    assert x.to(torch.float64).z.dtype == torch.float64
