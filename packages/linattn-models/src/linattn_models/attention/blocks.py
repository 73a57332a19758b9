"""Block-causal attention: blocks beside each other in the batch, and their running sums."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import LinearAttentionState


def split_blocks(x: Tensor, block: int) -> Tensor:
    """(B, H, N, D) -> (B n, H, block, D) for n = ceil(N / block), at least 1, padded by zeros."""
    padding = max(block, x.shape[2] + -x.shape[2] % block) - x.shape[2]
    whole = F.pad(x, (0, 0, 0, padding)) if padding else x
    blocks: Tensor = whole.unflatten(2, (-1, block))
    return blocks.transpose(1, 2).flatten(0, 1)


def join_blocks(x: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of `split_blocks`: (B n, H, block, D) -> (B, H, N, D)."""
    blocks: Tensor = x.unflatten(0, (batch, max(1, -(-length // x.shape[2]))))
    return blocks.transpose(1, 2).flatten(2, 3)[:, :, :length]


def block_lengths(
    batch: int, length: int, block: int, lengths: Tensor | None, device: torch.device
) -> Tensor:
    """(B, n) int64, the positions of each row that lie in each block."""
    starts = torch.arange(0, max(length, 1), block, device=device)
    ends = torch.full((batch,), length, device=device) if lengths is None else lengths
    return (ends.unsqueeze(1) - starts).clamp(0, block)


def running_sums(
    own: LinearAttentionState, log_factors: Tensor | None, state: LinearAttentionState | None
) -> LinearAttentionState:
    """S and z after each block: S_i = exp(log_factors_i) S_(i-1) + own_i, and z alike.

    Args:
        own: the sums of each block alone, (B, n, H, F, M) and (B, n, H, F).
        log_factors: (B, n, H); None for 0.
        state: before the first block; zeros by default.
    """
    joined = torch.cat([own.s, own.z.unsqueeze(-1)], -1)  # (B, n, H, F, M + 1)
    before = torch.zeros_like(joined[:, 0])
    if state is not None:
        before = torch.cat([state.s, state.z.unsqueeze(-1)], -1)
    if log_factors is None:
        after = joined.cumsum(1) + before.unsqueeze(1)
        return LinearAttentionState(after[..., :-1], after[..., -1])
    factors = log_factors.to(joined.dtype).exp()[..., None, None].unbind(1)
    sums = []
    for factor, added in zip(factors, joined.unbind(1), strict=True):
        before = torch.addcmul(added, factor, before)
        sums.append(before)
    after = torch.stack(sums, 1)
    return LinearAttentionState(after[..., :-1], after[..., -1])
