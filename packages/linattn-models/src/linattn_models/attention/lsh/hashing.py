"""Random rotations, buckets, and the order in which a round of hashing sorts the positions."""

from __future__ import annotations

import torch
from torch import Tensor

# Bucket numbers up to this one fit into a byte; bytes are sorted in half the time of int32.
_MOST_IN_A_BYTE = 255


def buckets_of(query: Tensor, rotation: Tensor) -> Tensor:
    """The bucket of each query in one round: the nearest of the directions +-r_b.

        bucket = argmax [q R; -q R]

    Args:
        query: (B, H, N, D).
        rotation: (H, D, buckets / 2); with 0 columns, all queries are in one bucket.

    Returns:
        (B, H, N) int64 in 0..buckets-1.
    """
    half = rotation.shape[-1]
    if half == 0:
        return torch.zeros(query.shape[:3], dtype=torch.int64, device=query.device)
    along = query.to(rotation.dtype) @ rotation  # (B, H, N, buckets / 2)
    strongest = along.abs().argmax(-1, keepdim=True)
    opposite = along.gather(-1, strongest) < 0
    return (strongest + half * opposite).squeeze(-1)


def sort_positions(query: Tensor, rotation: Tensor, padding: Tensor | None) -> Tensor:
    """The positions sorted by bucket, and within a bucket by position.

    Padding comes last, whatever its bucket, so that padding does not change a sequence's chunks.

    Args:
        query: (B, H, N, D).
        rotation: (H, D, buckets / 2).
        padding: (B, N) bool, True at padding; None without padding.

    Returns:
        (B H, N) int64.

    Cost: O(N log N) time, O(N buckets) memory for each head.
    """
    bucket = buckets_of(query, rotation)
    buckets = max(1, 2 * rotation.shape[-1])
    if padding is not None:
        bucket = bucket.masked_fill(padding.unsqueeze(1), buckets)  # past all others
    numbered = bucket.to(torch.uint8 if buckets <= _MOST_IN_A_BYTE else torch.int32)
    return numbered.flatten(0, 1).sort(dim=-1, stable=True).indices
