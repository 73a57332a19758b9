"""The random numbers of several steps of a decoder."""

from __future__ import annotations

from torch import Tensor

from linattn_core.decoding import Draw
from linattn_models.decoding.sampling import Sampling
from linattn_models.heads.base import Drawn, fill


def noise_of_steps(head: Drawn, count: int, sampling: Sampling, *, like: Tensor) -> Draw:
    """Random numbers for `count` steps of (B,) tokens: (count, B, K) and (count, B, C).

    They are those that `head.noise` would give, step by step: a generator gives other numbers to
    one tensor than to its parts.

    Args:
        like: (B, ...), has the batch, dtype and device.
    """
    if sampling.temperature == 0:
        return Draw(0.0, None, None)
    waits, uniforms = (
        like.new_empty(count, len(like), size) if size else None for size in head.noise_sizes
    )
    of_steps = (x.unbind() if x is not None else [None] * count for x in (waits, uniforms))
    for wait, uniform in zip(*of_steps, strict=True):
        fill(Draw(sampling.temperature, wait, uniform), sampling.generator)
    return Draw(sampling.temperature, waits, uniforms)
