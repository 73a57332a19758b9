"""A step in place takes any state but one that has two numbers in one place of memory."""

from __future__ import annotations

import pytest
import torch

from linattn_core import LinearAttentionState, linear_attention_step

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


def separate() -> dict[str, LinearAttentionState]:
    s, z, block = torch.zeros(B, H, D, M), torch.zeros(B, H, D), torch.zeros(B, H, D, M + 1)
    flat, wide = torch.zeros(B * H * D * (M + 1)), torch.zeros(B, H, D, 2 * M)
    return {
        "plain": LinearAttentionState(s, z),
        "one block": LinearAttentionState(block[..., 1:], block[..., 0]),
        "halves": LinearAttentionState(flat[: s.numel()].view_as(s), flat[s.numel() :].view_as(z)),
        "transposed": LinearAttentionState(s.view(B, H, M, D).mT, torch.zeros(B, D, H).mT),
        "every other": LinearAttentionState(wide[..., ::2], z),
        "a single row": LinearAttentionState(s[:1].as_strided((1, H, D, M), (0, 20, 5, 1)), z[:1]),
        "no values": LinearAttentionState(s[..., :0], z),
        "no rows": LinearAttentionState(s[:1].expand(B, -1, -1, -1)[:0], z[:0]),
    }


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


@pytest.mark.parametrize("name", shared())
def test_it_is_taken_where_the_state_is_copied(name: str) -> None:
    state = shared()[name]
    q, v = torch.ones(B, H, D), torch.ones(B, H, M)
    out, _ = linear_attention_step(q, q, v, state)
    assert torch.equal(out, linear_attention_step(q, q, v, state.clone())[0])


@pytest.mark.parametrize("name", separate())
def test_any_other_state_is_updated(name: str) -> None:
    state = separate()[name]
    expected = state.clone()
    assert torch.equal(step_in_place(state), step_in_place(expected))
    assert torch.equal(state.s, expected.s) and torch.equal(state.z, expected.z)
