"""S and z, or R and r of the gradients, carried from chunk to chunk in either direction of time."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.reference_backend.workspace import Segment, Workspace
from linattn_core.state import LinearAttentionState


class RunningSums:
    """The sums over all chunks passed so far, s (B * H, F, M) and z (B * H, F).

    Args:
        work: scratch; the sums have its dtype.
        start: what the sums start with, (B, H, F, M) and (B, H, F); None for zeros.
        reverse: whether the chunks are passed from the last to the first.
        keep_end: whether the sums after the final chunk are needed. If not, the final chunk is not
            added.
        length: N, by which the final chunk is recognized.
    """

    def __init__(
        self,
        work: Workspace,
        start: LinearAttentionState | None,
        *,
        reverse: bool,
        keep_end: bool,
        length: int,
    ) -> None:
        self._work = work
        self._reverse = reverse
        self._keep_end = keep_end
        self._length = length
        self.sums: LinearAttentionState | None = None
        if start is not None:
            self.sums = LinearAttentionState(*(x.flatten(0, 1).to(work.dtype) for x in start))

    def pass_over(
        self,
        keys: Tensor,
        values: Tensor,
        scale: Tensor | None,
        part: Segment,
        across: Tensor | None = None,
    ) -> LinearAttentionState | None:
        """Adds a segment; returns the sums before each of its chunks.

        Args:
            keys: (chunks * B * H, C, F).
            values: (chunks * B * H, C, M).
            scale: (chunks * B * H, C, 1), factors of the keys in the vector sum; None for ones.
            part: the segment.
            across: (chunks * B * H, 1), the factors by which chunks decay earlier sums; None
                without decay.

        Returns:
            s (chunks * B * H, F, M) and z (chunks * B * H, F); None where both are zero.
        """
        if part.chunks > 1:
            return self._pass_over_chunks(keys, values, scale, part.chunks, across)
        met = self.sums
        at_end = part.start == 0 if self._reverse else part.stop == self._length
        if self._keep_end or not at_end:
            z = self._vector_sums(keys, scale)
            s = torch.bmm(keys.mT, values)
            old_s, old_z = met or (None, None)
            self.sums = LinearAttentionState(
                _add_decayed(s, old_s, across), _add_decayed(z, old_z, across)
            )
        return met

    def _pass_over_chunks(
        self,
        keys: Tensor,
        values: Tensor,
        scale: Tensor | None,
        chunks: int,
        across: Tensor | None,
    ) -> LinearAttentionState:
        rows, feature_dim, value_dim = keys.shape[0] // chunks, keys.shape[2], values.shape[2]
        local_s = self._work("local s", chunks, rows, feature_dim, value_dim)
        torch.bmm(keys.mT, values, out=local_s.flatten(0, 1))
        local_z = self._vector_sums(keys, scale).unflatten(0, (chunks, rows))
        decay = None if across is None else across.unflatten(0, (chunks, rows))
        start_s, start_z = self.sums or (None, None)
        s = self._accumulate("running s", local_s, start_s, decay)
        z = self._accumulate("running z", local_z, start_z, decay)
        met, end = (slice(1, None), 0) if self._reverse else (slice(0, chunks), chunks)
        self.sums = LinearAttentionState(s[end].clone(), z[end].clone())
        return LinearAttentionState(s[met].flatten(0, 1), z[met].flatten(0, 1))

    def _accumulate(
        self, name: str, local: Tensor, start: Tensor | None, decay: Tensor | None
    ) -> Tensor:
        """Running sums of `local` (chunks, ...): (chunks + 1, ...), `start` included."""
        chunks = local.shape[0]
        running = self._work(name, chunks + 1, *local.shape[1:])
        running[chunks if self._reverse else 0] = 0 if start is None else start
        for i in reversed(range(chunks)) if self._reverse else range(chunks):
            source, target = (i + 1, i) if self._reverse else (i, i + 1)
            if decay is None:
                torch.add(running[source], local[i], out=running[target])
            else:
                factor = decay[i] if local.dim() == 3 else decay[i, ..., None]
                torch.addcmul(local[i], running[source], factor, out=running[target])
        return running

    def _vector_sums(self, keys: Tensor, scale: Tensor | None) -> Tensor:
        """The sum of the (scaled) keys of each chunk, (chunks * B * H, F)."""
        if scale is None:
            return keys.sum(1)
        return torch.mul(keys, scale, out=self._work("scratch", *keys.shape)).sum(1)


def _add_decayed(new: Tensor, old: Tensor | None, decay: Tensor | None) -> Tensor:
    """new += decay * old, with decay (rows, 1) or None for 1; in place."""
    if old is None:
        return new
    if decay is None:
        return new.add_(old)
    return new.addcmul_(old, decay if new.dim() == 2 else decay[..., None])
