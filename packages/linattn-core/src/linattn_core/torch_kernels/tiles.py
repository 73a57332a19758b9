"""Moving one segment between the caller's tensors and contiguous chunk-major scratch tensors.

The caller's layout is (B, H, N, D) with any strides and dtype; scratch is (chunks * B * H, C, D)
in the accumulation dtype. Chunks come first so that the states between them, which are a running
sum over chunks, are a contiguous batch of matrices too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core import pointwise
from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.reference.definition import absent
from linattn_core.state import LinearAttentionState
from linattn_core.torch_kernels.workspace import Segment, Workspace


class Problem(NamedTuple):
    """One call, or a part of its batch.

    Attributes:
        call: the inputs; a state a row of the batch.
        absent: (B, 1, L, 1) bool, true where there is no key; None where all exist.
    """

    call: AttentionCall
    absent: Tensor | None

    @classmethod
    def of(cls, call: AttentionCall) -> Problem:
        """The call, with its lengths as a mask."""
        lengths = call.key_lengths
        if lengths is None:
            return cls(call, None)
        return cls(call, absent(lengths.to(call.device), call.key_length))

    def batch(self, group: slice) -> Problem:
        """The same for some of the sequences."""
        call = self.call
        part = call._replace(
            query=call.query[group], key=call.key[group], value=call.value[group],
            initial_state=some(call.initial_state, group),
        )  # fmt: skip
        return Problem(part, None if self.absent is None else self.absent[group])

    def new_gradients(self, grad_initial: LinearAttentionState | None) -> Gradients:
        """Contiguous tensors, not yet written, for the gradients of query, key and value."""
        query, key, value = (
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in self.call[:3]
        )
        return Gradients(query, key, value, grad_initial)

    def queries(self, work: Workspace, part: Segment) -> Tensor:
        """phi(q) of a segment, (chunks * B * H, C, F)."""
        return load_features(work, "q", self.call.feature_map, self.call.query, part)

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
        """Zeroes the keys that do not exist; filled, not multiplied, as padding may hold NaN."""
        if self.absent is not None:
            gone = window(self.absent, part)  # (chunks, B, 1, C, 1)
            tile.unflatten(0, (part.chunks, gone.shape[1], -1)).masked_fill_(gone, 0)
        return tile


def some(state: LinearAttentionState | None, group: slice) -> LinearAttentionState | None:
    """The states of some of the sequences."""
    return None if state is None else LinearAttentionState(state.s[group], state.z[group])


def window(x: Tensor, part: Segment) -> Tensor:
    """The segment's positions of (B, H, N, D), as a (chunks, B, H, C, D) view."""
    run = x[:, :, part.start : part.stop]
    batch, heads, _, dim = run.shape
    b, h, n, d = run.stride()
    shape = (part.chunks, batch, heads, part.size, dim)
    return run.as_strided(shape, (n * part.size, b, h, n, d))


def load(work: Workspace, name: str, x: Tensor, part: Segment) -> Tensor:
    """The segment of `x` in scratch, (chunks * B * H, C, D)."""
    view = window(x, part)
    return work(name, *view.shape).copy_(view).flatten(0, 2)


def load_features(work: Workspace, name: str, phi: str, x: Tensor, part: Segment) -> Tensor:
    """phi of the segment of `x` in scratch, (chunks * B * H, C, F)."""
    view = window(x, part)
    out = work(name, *view.shape)
    return pointwise.apply_into(phi, view, out, work("scratch", *view.shape)).flatten(0, 2)


def load_output_gradient(
    work: Workspace, grad_out: Tensor, normalizer: Tensor, part: Segment
) -> Tensor:
    """g = G / n of a segment, (chunks * B * H, C, M)."""
    view = window(grad_out, part)
    g = work("g", *view.shape)
    return torch.div(view, window(normalizer[..., None], part), out=g).flatten(0, 2)


def load_normalizer_gradient(work: Workspace, g: Tensor, out: Tensor, part: Segment) -> Tensor:
    """h = -g . V' of a segment, (chunks * B * H, C, 1)."""
    view = window(out, part)
    products = torch.mul(g.view(view.shape), view, out=work("o", *view.shape))
    return products.sum(-1, keepdim=True).neg_().flatten(0, 2)


def write_output(numerator: Tensor, total: Tensor, into: Output, part: Segment) -> None:
    """V' = numerator / n of a segment to the output, and n beside it."""
    view = window(into.out, part)
    torch.div(numerator.view(view.shape), total.view(*view.shape[:-1], 1), out=view)
    store(total, into.normalizer[..., None], part)


def store(tile: Tensor, x: Tensor, part: Segment) -> None:
    """Writes a scratch tile to its segment of `x`, rounding to the dtype of `x`."""
    view = window(x, part)
    view.copy_(tile.view(view.shape))
