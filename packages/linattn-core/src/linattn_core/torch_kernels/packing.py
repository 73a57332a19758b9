"""Packed sequences as a few padded batches of sequences of similar length.

Sequences are put together when their lengths have the same power of two above them, so that at
most half of a batch is padding and there are at most log2(longest) batches.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.state import LinearAttentionState
from linattn_core.torch_kernels.attention import Gradients, Output, backward, forward
from linattn_core.torch_kernels.tiles import Problem


class Bucket(NamedTuple):
    """Some of the packed sequences.

    Attributes:
        sequences: (G,) their numbers.
        positions: (G, longest) where their elements are; the last one repeated as padding.
        exists: (G, longest) bool, false at padding.
    """

    sequences: Tensor
    positions: Tensor
    exists: Tensor

    def gather(self, x: Tensor) -> Tensor:
        """(1, H, total, D) -> (G, H, longest, D)."""
        picked: Tensor = x[0].index_select(1, self.positions.flatten())
        return picked.view(x.shape[1], *self.positions.shape, x.shape[3]).transpose(0, 1)

    def scatter(self, x: Tensor, into: Tensor) -> None:
        """The inverse: writes the (G, H, longest, D) elements that exist into (1, H, total, D)."""
        into[0][:, self.positions[self.exists]] = x.transpose(0, 1)[:, self.exists]

    def absent(self) -> Tensor:
        """(G, 1, longest, 1), true at padding."""
        return ~self.exists[:, None, :, None]

    def states(self, state: LinearAttentionState | None) -> LinearAttentionState | None:
        """The states of these sequences."""
        return None if state is None else state.index_select(self.sequences)


def buckets(cu_seqlens: Tensor, device: torch.device) -> list[Bucket]:
    """Sorts the sequences that are not empty into buckets of similar length."""
    bounds = cu_seqlens.tolist()
    by_size: dict[int, list[int]] = defaultdict(list)
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            by_size[(stop - start - 1).bit_length()].append(i)
    return [_bucket(members, bounds, device) for members in by_size.values()]


def _bucket(members: list[int], bounds: list[int], device: torch.device) -> Bucket:
    starts = torch.tensor([bounds[i] for i in members], device=device)[:, None]
    lengths = torch.tensor([bounds[i + 1] - bounds[i] for i in members], device=device)[:, None]
    longest = max(bounds[i + 1] - bounds[i] for i in members)
    offsets = torch.arange(longest, device=device)
    positions = starts + torch.minimum(offsets, lengths - 1)
    return Bucket(torch.tensor(members, device=device), positions, offsets < lengths)


def _gathered(problem: Problem, bucket: Bucket) -> Problem:
    q, k, v = (bucket.gather(x) for x in problem[:3])
    return problem._replace(query=q, key=k, value=v, absent=bucket.absent())


def _put(
    state: LinearAttentionState | None, bucket: Bucket, part: LinearAttentionState | None
) -> None:
    if state is not None and part is not None:
        state.s[bucket.sequences] = part.s
        state.z[bucket.sequences] = part.z


def packed_forward(
    problem: Problem,
    cu_seqlens: Tensor,
    initial: LinearAttentionState | None,
    *,
    is_causal: bool,
    keep_state: bool,
) -> Output:
    """`forward` for sequences packed end to end in one row; states are one a sequence."""
    query, value = problem.query, problem.value
    sequences = cu_seqlens.numel() - 1
    empty = problem._replace(
        query=query[:, :, :0].expand(sequences, -1, -1, -1),
        key=problem.key[:, :, :0].expand(sequences, -1, -1, -1),
        value=value[:, :, :0].expand(sequences, -1, -1, -1),
    )
    # Of no positions at all: the states that empty sequences keep, and the dtypes.
    state, normalizer = forward(empty, initial, is_causal=is_causal, keep_state=keep_state)[1:]
    out = value.new_empty(*query.shape[:3], value.shape[-1])
    normalizer = normalizer.new_empty(query.shape[:3])
    for bucket in buckets(cu_seqlens, query.device):
        part = forward(
            _gathered(problem, bucket),
            bucket.states(initial),
            is_causal=is_causal,
            keep_state=keep_state,
        )
        bucket.scatter(part.out, out)
        bucket.scatter(part.normalizer[..., None], normalizer[..., None])
        _put(state, bucket, part.state)
    return Output(out, state, normalizer)


def packed_backward(
    grad_out: Tensor,
    grad_state: LinearAttentionState | None,
    problem: Problem,
    cu_seqlens: Tensor,
    out: Tensor,
    normalizer: Tensor,
    state: LinearAttentionState | None,
    *,
    is_causal: bool,
) -> Gradients:
    """`backward` for sequences packed end to end in one row."""
    grads = problem.new_gradients()
    grad_initial = None
    if is_causal and state is not None:
        # An empty sequence hands its starting state on: so does its gradient.
        grad_initial = LinearAttentionState(
            torch.zeros_like(state.s), torch.zeros_like(state.z)
        ) if grad_state is None else grad_state.clone()  # fmt: skip
    for bucket in buckets(cu_seqlens, grad_out.device):
        part = backward(
            bucket.gather(grad_out).masked_fill(bucket.absent(), 0),
            bucket.states(grad_state),
            _gathered(problem, bucket),
            bucket.gather(out),
            bucket.gather(normalizer[..., None]).squeeze(-1),
            bucket.states(state),
            is_causal=is_causal,
        )
        for gradient, whole in zip(part[:3], grads, strict=True):
            bucket.scatter(gradient, whole)
        _put(grad_initial, bucket, part.state)
    return Gradients(grads[0], grads[1], grads[2], grad_initial)
