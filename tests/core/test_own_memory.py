"""A step in place takes any state but one that has two numbers in one place of memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_core import LinearAttentionState, linear_attention_step
from linattn_core.values import _share, check_own_memory

B, H, D, M = 2, 3, 4, 5


def shared() -> dict[str, LinearAttentionState]:
    s, z, block = torch.zeros(B, H, D, M), torch.zeros(B, H, D), torch.zeros(B, H, D, M + 1)
    windows = torch.zeros(200).as_strided((B, H, D, M), (30, 10, 2, 1))
    return {
        "rows": LinearAttentionState(s[:1].expand(B, -1, -1, -1), z),
        "rows of z": LinearAttentionState(s, z[:1].expand(B, -1, -1)),
        "windows": LinearAttentionState(windows, z),
        "z within s": LinearAttentionState(s, s[..., 0]),
        "z within a strided s": LinearAttentionState(block[..., 1:], block[..., 1]),
        "one range": LinearAttentionState(s, s.flatten()[-24:].view_as(z)),
    }


@given(
    sizes=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    strides=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    z_strides=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    shares_rows=st.booleans(),
    first=st.integers(0, 60),
    z_first=st.integers(0, 60),
)
def test_shared_memory_is_found_as_by_listing_all_places(
    sizes: list[int],
    strides: list[int],
    z_strides: list[int],
    shares_rows: bool,
    first: int,
    z_first: int,
) -> None:
    if shares_rows:
        z_strides[:2] = strides[:2]
    memory = torch.arange(200, dtype=torch.float32)
    s = memory.as_strided(sizes, strides, first)
    z = memory.as_strided(sizes[:3], z_strides, z_first)
    places = [*s.flatten().tolist(), *z.flatten().tolist()]
    if len(set(places)) == len(places):
        check_own_memory(LinearAttentionState(s, z))
    else:
        with pytest.raises(ValueError, match=r"^the state"):
            check_own_memory(LinearAttentionState(s, z))


def test_slots_of_a_large_pool_are_told_apart_without_its_size() -> None:
    """A terabyte, were it there: s and z of each slot lie side by side."""
    slots, room = 1 << 20, 1 << 18
    s, z = ((slots, 8, 64, 64), (room, 4096, 64, 1)), ((slots, 8, 64), (room, 64, 1))
    assert not _share(s[0], s[1], z[1], 4, 4 * 8 * 4096)
    assert _share(s[0], s[1], z[1], 4, 4 * 4096)


def step_in_place(state: LinearAttentionState) -> torch.Tensor:
    batch, values = state.s.shape[0], state.s.shape[-1]
    q, v = torch.ones(batch, H, D), torch.ones(batch, H, values)
    return linear_attention_step(q, q, v, state, inplace=True)[0]


@pytest.mark.parametrize("name", shared())
def test_a_state_that_shares_memory_is_refused(name: str) -> None:
    state = shared()[name]
    with pytest.raises(ValueError, match=r"^the state"):
        step_in_place(state)
    assert not state.s.any() and not state.z.any()
