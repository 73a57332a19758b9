"""The chunked form: quadratic inside a chunk, a state between chunks."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from linattn_core.calls import AttentionCall
from linattn_core.reference import decay
from linattn_core.reference.definition import Features, Options, Sums, run
from linattn_core.state import LinearAttentionState


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    enable_gqa: bool = False,
    chunk_size: int = 64,
    **options: Unpack[Options],
) -> Any:
    """Linear attention by chunks of `chunk_size` positions.

    Within a chunk the weights are a small lower-triangular matrix; earlier positions are read from
    S and z. Arguments, shapes and results are as for `quadratic`; it can be differentiated any
    number of times.

    Cost: O(N (F M + C (F + M))) time, O(N (C + F M / C)) memory per head for chunks of C.
    """
    call = AttentionCall(query, key, value, **options)  # type: ignore[arg-type]
    return run(_attend, call, chunk_size=chunk_size)


def _attend(x: Features, chunk_size: int) -> Sums:
    return _causal(x, chunk_size) if x.is_causal else _noncausal(x)


def _noncausal(x: Features) -> Sums:
    s, z = x.state
    s = s + (x.key.mT.to(x.value.dtype) @ x.value).to(s.dtype)
    z = z + x.key.sum(-2).to(z.dtype)
    # S and z have different dtypes where a map of half-precision keys computes in float32.
    read = x.query.to(s.dtype) @ s, x.query.to(z.dtype) @ z[..., None]
    return Sums(*read, LinearAttentionState(s, z))


def _causal(x: Features, chunk_size: int) -> Sums:
    q, k, v = (_into_chunks(y, chunk_size) for y in x[:3])
    weights = (q @ k.mT).tril()  # (B, H, chunks, C, C)
    passing = None
    if x.decay is not None:
        g = _into_chunks(x.decay[..., None], chunk_size)[..., 0]  # (B, H, chunks, C)
        weights = weights * decay.between(g)
        q, k = q * decay.from_start(g), k * decay.to_end(g)
        passing = g.sum(-1)  # (B, H, chunks)
    s, z = x.state
    s_before, s = _before((k.mT.to(v.dtype) @ v).to(s.dtype), s, passing)  # (B, H, chunks, F, M)
    z_before, z = _before(k.sum(-2).to(z.dtype), z, passing)  # (B, H, chunks, F)
    numerator = weights.to(v.dtype) @ v + q.to(s.dtype) @ s_before
    normalizer = weights.sum(-1, keepdim=True) + q.to(z.dtype) @ z_before[..., None]
    numerator, normalizer = (
        y.flatten(2, 3)[:, :, : x.query.shape[2]] for y in (numerator, normalizer)
    )
    return Sums(numerator, normalizer, LinearAttentionState(s, z))


def _into_chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, N, D) -> (B, H, chunks, size, D), with zeros after the end."""
    batch, heads, length, dim = x.shape
    chunks = (length + size - 1) // size  # not -(-n // size): ONNX rounds toward zero
    if torch.compiler.is_exporting():
        chunks += 1  # an example with one chunk would fix their number in the graph
    padded = pad(x, (0, 0, 0, chunks * size - length))
    return padded.reshape(batch, heads, chunks, size, dim)


def _before(local: Tensor, start: Tensor, passing: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums before each chunk and after the last; `passing` (B, H, chunks) is a log decay."""
    if passing is None:
        running = torch.cat((start.unsqueeze(2), local), 2).cumsum(2)
        return running[:, :, :-1], running[:, :, -1]
    if torch.compiler.is_exporting():
        return _before_at_once(local, start, passing)
    factors = passing.exp().view(*passing.shape, *(1 for _ in local.shape[3:]))
    sums = [start]
    for i in range(local.shape[2]):
        sums.append(sums[-1] * factors[:, :, i] + local[:, :, i])
    return torch.stack(sums, 2)[:, :, :-1], sums[-1]


def _before_at_once(local: Tensor, start: Tensor, passing: Tensor) -> tuple[Tensor, Tensor]:
    """`_before` with decay but without a loop, for exported graphs: a matrix of decay factors."""
    alone = torch.cat((start.unsqueeze(2), local), 2).flatten(3)  # (B, H, 1 + chunks, F M)
    sums = (decay.between(pad(passing, (1, 0))).tril() @ alone).unflatten(3, local.shape[3:])
    return sums[:, :, :-1], sums[:, :, -1]
