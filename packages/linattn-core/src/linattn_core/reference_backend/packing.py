"""Packed sequences as a few padded batches of sequences of similar length.

Sequences share a batch when their lengths round up to the same power of two, so that at
most half of a batch is padding and there are at most log2(longest) batches.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.reference_backend.attention import backward, forward
from linattn_core.reference_backend.tiles import Problem, Upstream
from linattn_core.state import LinearAttentionState
from linattn_core.values import check_bounds


class Bucket(NamedTuple):
    """Some of the packed sequences.

    Attributes:
        sequences: (G,), their indices among the packed sequences.
        positions: (G, longest), where their elements are; the last one is repeated as padding.
        exists: (G, longest) bool, False at padding.
    """

    sequences: Tensor
    positions: Tensor
    exists: Tensor

    def gather(self, x: Tensor) -> Tensor:
        """(1, H, total, D) -> (G, H, longest, D)."""
        picked: Tensor = x[0].index_select(1, self.positions.flatten())
        return picked.view(x.shape[1], *self.positions.shape, x.shape[3]).transpose(0, 1)

    def scatter(self, x: Tensor, into: Tensor) -> None:
        """Inverse of `gather`: writes the (G, H, longest, D) that exist into (1, H, total, D)."""
        into[0][:, self.positions[self.exists]] = x.transpose(0, 1)[:, self.exists]

    def absent(self) -> Tensor:
        """(G, 1, longest, 1) bool, True at padding."""
        return ~self.exists[:, None, :, None]

    def states(self, state: LinearAttentionState | None) -> LinearAttentionState | None:
        """The states of these sequences."""
        return None if state is None else state.index_select(self.sequences)


def buckets(call: AttentionCall) -> list[Bucket]:
    """Sorts the sequences that are not empty into buckets of similar length."""
    assert call.cu_seqlens is not None, "only packed sequences are sorted"
    bounds = call.cu_seqlens.tolist()
    check_bounds(bounds, call.key_length)  # of a GPU, nobody has read them before
    by_size: dict[int, list[int]] = defaultdict(list)
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            by_size[(stop - start - 1).bit_length()].append(i)
    return [_bucket(members, bounds, call.device) for members in by_size.values()]


def _bucket(members: list[int], bounds: list[int], device: torch.device) -> Bucket:
    starts = torch.tensor([bounds[i] for i in members], device=device)[:, None]
    lengths = torch.tensor([bounds[i + 1] - bounds[i] for i in members], device=device)[:, None]
    longest = max(bounds[i + 1] - bounds[i] for i in members)
    offsets = torch.arange(longest, device=device)
    positions = starts + torch.minimum(offsets, lengths - 1)
    return Bucket(torch.tensor(members, device=device), positions, offsets < lengths)


def _gather_problem(problem: Problem, bucket: Bucket) -> Problem:
    query, key, value = (bucket.gather(x) for x in problem.call[:3])
    initial = bucket.states(problem.call.initial_state)
    absent, decay = bucket.absent(), problem.decay
    if problem.absent is not None:
        absent = absent | bucket.gather(problem.absent)
    if decay is not None:
        decay = bucket.gather(decay).masked_fill(absent, 0)
    return Problem(_one_a_row(problem.call, query, key, value, initial, decay), absent, decay)


def _one_a_row(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    initial: LinearAttentionState | None,
    decay: Tensor | None = None,
) -> AttentionCall:
    return call._replace(
        query=query, key=key, value=value, initial_state=initial, cu_seqlens=None, attn_mask=None,
        log_decay=None if decay is None else decay[..., 0],
    )  # fmt: skip


def _put(
    state: LinearAttentionState | None, bucket: Bucket, part: LinearAttentionState | None
) -> None:
    if state is not None and part is not None:
        state.s[bucket.sequences] = part.s
        state.z[bucket.sequences] = part.z


def packed_forward(problem: Problem) -> Output:
    """`forward` for sequences packed end to end in one row, with one state per sequence."""
    call = problem.call
    query, key, value = (x[:, :, :0].expand(call.num_sequences, -1, -1, -1) for x in call[:3])
    # A call without positions gives the states of empty sequences, and the dtypes.
    empty = forward(Problem(_one_a_row(call, query, key, value, call.initial_state), None))
    out = call.value.new_empty(*call.query.shape[:3], call.value_dim)
    normalizer = empty.normalizer.new_empty(call.query.shape[:3])
    for bucket in buckets(call):
        part = forward(_gather_problem(problem, bucket))
        bucket.scatter(part.out, out)
        bucket.scatter(part.normalizer[..., None], normalizer[..., None])
        _put(empty.state, bucket, part.state)
    return Output(out, normalizer, empty.state)


def packed_backward(problem: Problem, output: Output, upstream: Upstream) -> Gradients:
    """`backward` for sequences packed end to end in one row."""
    grad_initial = None
    call = problem.call
    if call.initial_state is not None and "initial_state" in call.wanted_gradients:
        # An empty sequence returns its initial state, so both have the same gradient.
        grad_initial = LinearAttentionState(
            *map(torch.zeros_like, call.initial_state)
        ) if upstream.state is None else upstream.state.clone()  # fmt: skip
    gradients = problem.new_gradients(grad_initial)
    for bucket in buckets(call):
        part = backward(
            _gather_problem(problem, bucket),
            _gather_output(output, bucket),
            _gather_upstream(upstream, bucket),
        )
        for gradient, whole in zip(part[:3], gradients[:3], strict=True):
            if gradient is not None and whole is not None:
                bucket.scatter(gradient, whole)
        if part.log_decay is not None and gradients.log_decay is not None:
            bucket.scatter(part.log_decay[..., None], gradients.log_decay[..., None])
        _put(grad_initial, bucket, part.initial_state)
    return gradients


def _gather_output(output: Output, bucket: Bucket) -> Output:
    normalizer = bucket.gather(output.normalizer[..., None]).squeeze(-1)
    return Output(bucket.gather(output.out), normalizer, bucket.states(output.state))


def _gather_upstream(upstream: Upstream, bucket: Bucket) -> Upstream:
    """The gradients of some sequences, zero at padding."""
    out, normalizer = (
        bucket.gather(upstream.out).masked_fill(bucket.absent(), 0),
        upstream.normalizer,
    )
    if normalizer is not None:
        normalizer = bucket.gather(normalizer[..., None]).masked_fill(bucket.absent(), 0)[..., 0]
    return Upstream(out, normalizer, bucket.states(upstream.state), upstream.normalized)
