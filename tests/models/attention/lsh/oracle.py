"""LSH attention by its definition: an N x N mask of the visible keys, made by plain loops."""

from __future__ import annotations

import torch
from torch import Tensor


def visible(query: Tensor, rotations: Tensor, chunk: int, *, is_causal: bool) -> Tensor:
    """What each position of one head sees, by any round.

    Args:
        query: (N, D).
        rotations: (rounds, D, buckets / 2).

    Returns:
        (N, N) bool, True at [i, j] when i sees j; itself only where it sees nothing else.
    """
    length = query.shape[0]
    seen = torch.zeros(length, length, dtype=torch.bool)
    for rotation in rotations:
        along = query @ rotation
        buckets = torch.cat([along, -along], 1).argmax(1).tolist() if rotation.numel() else None
        order = sorted(range(length), key=lambda i: (buckets[i] if buckets else 0, i))
        place = {position: index // chunk for index, position in enumerate(order)}
        for i in range(length):
            for j in range(length):
                before = j <= i or not is_causal
                seen[i, j] |= before and place[i] - place[j] in (0, 1)
    seen.fill_diagonal_(False)
    alone = ~seen.any(1)
    return seen | torch.diag(alone)


def attention(query: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """The softmax over the visible keys, which are the queries at length 1: (N, D) -> (N, M)."""
    key = query / query.norm(dim=1, keepdim=True)
    scores = (query @ key.T).masked_fill(~seen, -torch.inf)
    return scores.softmax(1) @ value


def lsh(query: Tensor, value: Tensor, rotations: Tensor, chunk: int, *, is_causal: bool) -> Tensor:
    """`lsh_attention` of (B, H, N, D), head by head."""
    heads = [
        attention(q, v, visible(q.detach(), rotations[:, h], chunk, is_causal=is_causal))
        for queries, values in zip(query, value, strict=True)
        for h, (q, v) in enumerate(zip(queries, values, strict=True))
    ]
    return torch.stack(heads).view(value.shape)
