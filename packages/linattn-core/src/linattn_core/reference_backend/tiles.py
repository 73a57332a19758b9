"""Moves one segment between the caller's tensors and contiguous chunk-major scratch tensors.

The caller's layout is (B, H, N, D) with any strides and dtype; scratch is (chunks * B * H, C, D)
in the accumulation dtype. Chunks come first, so that the states between them, running sums over the
chunks, are a contiguous batch of matrices too. Where G query heads read one key/value head, queries
and tensors of their shape are (B, H_kv, G, N, D), and their scratch is
(chunks * B * H_kv, G * C, D): the chunk has G times as many queries for the same keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core import pointwise
from linattn_core.calls import AttentionCall, Gradients, Output, absent_keys
from linattn_core.native import new_gradients
from linattn_core.reference_backend.workspace import Segment, Workspace
from linattn_core.state import LinearAttentionState


class Problem(NamedTuple):
    """One call, or a part of its batch.

    Attributes:
        call: the inputs, with one state per row of the batch.
        absent: (B, 1, L, 1) bool, True where there is no key; None where all exist.
        decay: (B, H_kv, L, 1), zero where there is no key; None without decay.
    """

    call: AttentionCall
    absent: Tensor | None
    decay: Tensor | None = None

    @classmethod
    def of(cls, call: AttentionCall) -> Problem:
        """The problem of a call, with lengths and mask as one mask of absent keys."""
        gone = None
        if call.key_lengths is not None or call.attn_mask is not None:
            gone = absent_keys(call.key, call.key_lengths, call.attn_mask)
        return cls(call, gone, _decay(call.log_decay, gone))

    def batch(self, group: slice) -> Problem:
        """The same problem for some of the sequences."""
        call = self.call
        part = call._replace(
            query=call.query[group], key=call.key[group], value=call.value[group],
            initial_state=some(call.initial_state, group),
        )  # fmt: skip
        absent = None if self.absent is None else self.absent[group]
        return Problem(part, absent, None if self.decay is None else self.decay[group])

    def new_gradients(self, grad_initial: LinearAttentionState | None) -> Gradients:
        """The wanted gradients: uninitialized, but that of the decay, a sum of terms, is zeros."""
        gradients = new_gradients(self.call, self.call.wanted_gradients)
        if gradients.log_decay is not None:
            gradients.log_decay.zero_()
        return gradients._replace(initial_state=grad_initial)

    def group_heads(self, x: Tensor) -> Tensor:
        """(B, H, ...) -> (B, H_kv, G, ...); unchanged where G = 1."""
        call = self.call
        return x if call.groups == 1 else x.unflatten(1, (call.kv_heads, call.groups))

    def queries(self, work: Workspace, part: Segment) -> Tensor:
        """phi(q) of a segment, (chunks * B * H_kv, G * C, F)."""
        query = self.group_heads(self.call.query)
        return load_features(work, "q", self.call.feature_map, query, part)

    def keys(self, work: Workspace, part: Segment) -> Tensor:
        """phi(k) of a segment, zero where there is no key, (chunks * B * H, C, F)."""
        features = load_features(work, "k", self.call.feature_map, self.call.key, part)
        return self.erase(features, part)

    def values(self, work: Workspace, part: Segment) -> Tensor:
        """v of a segment, zero where there is no key, (chunks * B * H, C, M)."""
        return self.erase(load(work, "v", self.call.value, part), part)

    def derive(self, gradient: Tensor, features: Tensor) -> Tensor:
        """gradient *= phi'(x), from the features phi(x), which are overwritten."""
        return pointwise.multiply_derivative_(self.call.feature_map, gradient, features)

    def erase(self, tile: Tensor, part: Segment) -> Tensor:
        """Zeroes the keys that do not exist; not by a product with 0, as padding may hold NaN."""
        if self.absent is not None:
            gone = window(self.absent, part)  # (chunks, B, 1, C, 1)
            tile.unflatten(0, (part.chunks, gone.shape[1], -1)).masked_fill_(gone, 0)
        return tile


class Upstream(NamedTuple):
    """The upstream gradients of a call, or of a part of its batch.

    Attributes:
        out: (B, H, N, M).
        normalizer: (B, H, N); None where the normalizer was not returned.
        state: None where the state was not returned.
        normalized: whether the output was divided by the normalizer.
    """

    out: Tensor
    normalizer: Tensor | None
    state: LinearAttentionState | None
    normalized: bool


def some(state: LinearAttentionState | None, group: slice) -> LinearAttentionState | None:
    """The states of some of the sequences."""
    return None if state is None else LinearAttentionState(state.s[group], state.z[group])


def _decay(log_decay: Tensor | None, absent: Tensor | None) -> Tensor | None:
    if log_decay is None:
        return None
    decay = log_decay[..., None]
    return decay if absent is None else decay.masked_fill(absent, 0)


def window(x: Tensor, part: Segment) -> Tensor:
    """The segment's positions of (B, H, N, D), as a (chunks, B, H, C, D) view."""
    run = x[..., part.start : part.stop, :]
    *outer, n, d = run.stride()
    shape = (part.chunks, *run.shape[:-2], part.size, run.shape[-1])
    return run.as_strided(shape, (n * part.size, *outer, n, d))


def flat(scratch: Tensor) -> Tensor:
    """(chunks, B, H, C, D) -> (chunks * B * H, C, D); (chunks, B, H_kv, G, C, D) likewise."""
    rows = scratch.flatten(0, 2)
    return rows if rows.dim() == 3 else rows.flatten(1, 2)


def load(work: Workspace, name: str, x: Tensor, part: Segment) -> Tensor:
    """The segment of `x` in scratch, (chunks * B * H, C, D)."""
    view = window(x, part)
    return flat(work(name, *view.shape).copy_(view))


def load_features(work: Workspace, name: str, phi: str, x: Tensor, part: Segment) -> Tensor:
    """phi of the segment of `x` in scratch, (chunks * B * H, C, F)."""
    view = window(x, part)
    out = work(name, *view.shape)
    return flat(pointwise.apply_into(phi, view, out, work("scratch", *view.shape)))


def load_output_gradient(
    work: Workspace, output: Output, upstream: Upstream, part: Segment
) -> Tensor:
    """g = G / n of a segment, (chunks * B * H, C, M)."""
    if not upstream.normalized:
        return load(work, "g", upstream.out, part)
    view = window(upstream.out, part)
    g = work("g", *view.shape)
    return flat(torch.div(view, window(output.normalizer[..., None], part), out=g))


def load_normalizer_gradient(
    work: Workspace, g: Tensor, output: Output, upstream: Upstream, part: Segment
) -> Tensor:
    """h = -g . V' plus the upstream gradient of the normalizer, (chunks * B * H, C, 1)."""
    view = window(output.out, part)
    if upstream.normalized:
        products = torch.mul(g.view(view.shape), view, out=work("o", *view.shape))
        h = flat(products.sum(-1, keepdim=True).neg_())
    else:
        h = g.new_zeros(*g.shape[:2], 1)
    if upstream.normalizer is not None:
        h.add_(load(work, "h", upstream.normalizer[..., None], part))
    return h


def write_output(
    numerator: Tensor, total: Tensor, into: Output, part: Segment, *, normalize: bool
) -> None:
    """Writes V' = numerator / n of a segment (or the numerator) and the normalizer n."""
    if normalize:
        view = window(into.out, part)
        torch.div(numerator.view(view.shape), total.view(*view.shape[:-1], 1), out=view)
    else:
        store(numerator, into.out, part)
    store(total, into.normalizer[..., None], part)


def store(tile: Tensor, x: Tensor | None, part: Segment) -> None:
    """Writes a scratch tile to its segment of `x` (if not None), rounded to the dtype of x."""
    if x is None:
        return
    view = window(x, part)
    view.copy_(tile.view(view.shape))
