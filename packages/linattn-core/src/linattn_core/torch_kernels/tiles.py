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
from linattn_core.torch_kernels.workspace import Segment, Workspace


class Problem(NamedTuple):
    """The inputs of one call, or of a part of its batch.

    Attributes:
        query: (B, H, N, D), key (B, H, L, D), value (B, H, L, M): any strides.
        absent: (B, 1, L, 1) bool, true where there is no key; None where all exist.
        phi: name of the pointwise feature map.
        eps: added to the normalizer.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    absent: Tensor | None
    phi: str
    eps: float

    def batch(self, group: slice) -> Problem:
        """The same for some of the sequences."""
        absent = None if self.absent is None else self.absent[group]
        return self._replace(
            query=self.query[group], key=self.key[group], value=self.value[group], absent=absent
        )

    def new_gradients(self) -> list[Tensor]:
        """Contiguous tensors, not yet written, for the gradients of query, key and value."""
        inputs = (self.query, self.key, self.value)
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]

    def queries(self, work: Workspace, part: Segment) -> Tensor:
        """phi(q) of a segment, (chunks * B * H, C, F)."""
        return load_features(work, "q", self.phi, self.query, part)

    def keys(self, work: Workspace, part: Segment) -> Tensor:
        """phi(k) of a segment, zero where there is no key, (chunks * B * H, C, F)."""
        return self.erase(load_features(work, "k", self.phi, self.key, part), part)

    def values(self, work: Workspace, part: Segment) -> Tensor:
        """v of a segment, zero where there is no key, (chunks * B * H, C, M)."""
        return self.erase(load(work, "v", self.value, part), part)

    def erase(self, tile: Tensor, part: Segment) -> Tensor:
        """Zeroes the keys that do not exist; filled, not multiplied, as padding may hold NaN."""
        if self.absent is not None:
            gone = window(self.absent, part)  # (chunks, B, 1, C, 1)
            tile.unflatten(0, (part.chunks, gone.shape[1], -1)).masked_fill_(gone, 0)
        return tile


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


def write_output(
    numerator: Tensor, total: Tensor, out: Tensor, normalizer: Tensor, part: Segment
) -> None:
    """V' = numerator / n of a segment to the caller's tensor, and n beside it."""
    view = window(out, part)
    torch.div(numerator.view(view.shape), total.view(*view.shape[:-1], 1), out=view)
    store(total, normalizer[..., None], part)


def store(tile: Tensor, x: Tensor, part: Segment) -> None:
    """Writes a scratch tile to its segment of `x`, rounding to the dtype of `x`."""
    view = window(x, part)
    view.copy_(tile.view(view.shape))
