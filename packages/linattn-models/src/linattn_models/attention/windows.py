"""Softmax over a sliding window, joined to linear attention over all keys before it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import FeatureMap, LinearAttentionState, linear_attention
from linattn_core.autocast import without_autocast
from linattn_core.feature_maps import Hedgehog
from linattn_core.state import accumulation_dtype

# Far below the normalizers, so that it changes none; 0 / 0 would be NaN where there is no key.
EPS = 1e-30
# Products of fewer rows are slow.
LEAST_BLOCK = 64


class Window(NamedTuple):
    """Softmax for the last w keys beside linear attention; see `Linear`.

    Attributes:
        size: w.
        feature_map, backend: phi and the backend of linear attention.
        log_gamma: (H,), the trained weight of linear attention beside the window.
        log_decay: by how much the sums decay before the key of a position enters them, which is
            when it leaves the window: of the positions of a call, (B, H_kv, L), in a step
            (B, H_kv); (H_kv,) for all positions; None for no decay.
    """

    size: int
    feature_map: FeatureMap
    log_gamma: Tensor
    backend: str = "auto"
    log_decay: Tensor | None = None

    @property
    def is_gated(self) -> bool:
        """Whether each position has a decay of its own."""
        return self.log_decay is not None and self.log_decay.ndim > 1


def attend_windows(
    window: Window,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sums: LinearAttentionState | None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, LinearAttentionState | None]:
    """Causal attention: softmax for the last w keys, linear attention for all before them.

    Both share a normalizer: `Linear` has the equation; for a Hedgehog map with weight W, whose
    features have the same sum for every query, g is not constant, but grows with the query:

        g_i = (gamma / 4) sum_f (exp(W Q_i)_f + exp(-W Q_i)_f)

    Args:
        window: its decay is that of P + N positions.
        query: (B, H, N, D), without the scale of the scores.
        key, value: (B, H_kv, P + N, D) and (B, H_kv, P + N, M): the P <= w last keys before these
            queries, and their own.
        mask: (B, P + N) bool, False at keys that do not exist. They take places in the window.
        sums: over all keys before these; None if there are none.
        lengths: (B,) queries of each row, the others are padding on the right; None for all N.

    Returns:
        out (B, H, N, M), and the sums over all keys but the last w of each row; None if there are
        none.

    Cost: O(H N (w (D + M) + F M)) time; O(H N w) memory for the scores of the window.
    """
    length, columns = query.shape[2], key.shape[2]
    if length == 0:
        return value.new_zeros(*query.shape[:3], value.shape[3]), sums
    query, key = scale_scores(query, key)
    out, log_sum = softmax_windows(query, key, value, mask, window.size)
    first = window.size - (columns - length)
    if length <= first:
        return out, sums
    # All keys are `first` places behind these queries: each sees those before its window.
    later, count = query[:, :, first:], length - first
    log_decay = window.log_decay
    if log_decay is not None and window.is_gated:
        log_decay = log_decay[..., :count]
    far, normalizer, sums = linear_attention(
        later, key[:, :, :count], value[:, :, :count], is_causal=True,
        feature_map=window.feature_map, eps=EPS,
        attn_mask=None if mask is None else mask[:, None, None, :count],
        key_lengths=None if lengths is None else (lengths - first).clamp(min=0),
        initial_state=sums, return_normalizer=True, return_state=True,
        enable_gqa=bool(query.shape[1] != key.shape[1]),  # under torch.jit.trace a tensor
        backend=window.backend, log_decay=log_decay,
    )  # fmt: skip
    share = share_of_linear(window, later, normalizer, log_sum[:, :, first:])
    joined = torch.lerp(out[:, :, first:].to(far), far, share[..., None].to(far))
    return joined if first == 0 else torch.cat((out[:, :, :first].to(far), joined), 2), sums


def scale_scores(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products have the scale of softmax, 1 / sqrt(D)."""
    root = query.shape[-1] ** -0.25
    return query * root, key * root


def share_of_linear(window: Window, query: Tensor, normalizer: Tensor, log_sum: Tensor) -> Tensor:
    """The share (B, H, N) of linear attention in the weights of all keys.

    Args:
        query: (B, H, N, D), with the scale of the scores.
        normalizer: (B, H, N), of linear attention; not above 0 where its share is 0.
        log_sum: (B, H, N), the logarithm of the normalizer of softmax.
    """
    log_normalizer = normalizer.clamp_min(EPS).log() + _log_scale(window, query)
    return torch.sigmoid(log_normalizer.masked_fill(normalizer <= 0, -torch.inf) - log_sum)


def _log_scale(window: Window, query: Tensor) -> Tensor:
    """log g_i, (B, H, N) or (H, 1)."""
    dtype, phi = accumulation_dtype(query.dtype), window.feature_map
    log_gamma = window.log_gamma.to(dtype)
    if not isinstance(phi, Hedgehog):
        return (log_gamma - math.log(phi.feature_dim(query.shape[-1])))[:, None]
    with without_autocast(query.device.type):
        projected = query.to(dtype) @ phi.query_weight.to(dtype)
        both = torch.cat((projected, -projected), -1)
        return both.logsumexp(-1) + (log_gamma - math.log(4))[:, None]


def softmax_windows(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Softmax of each query over its window (B, H, N, M), and its log normalizer (B, H, N)."""
    (batch, heads, length, _), (kv_heads, columns) = query.shape, key.shape[1:3]
    if torch.compiler.is_exporting() or (torch.compiler.is_compiling() and length > 1):
        block = LEAST_BLOCK  # sizes that depend on the length would be compiled for each length
    else:
        size = min(size, columns)
        block = min(length, max(size, LEAST_BLOCK))
    blocks, span = -(-length // block), size - 1 + block
    if torch.compiler.is_exporting():
        blocks += 1  # one more than needed: see reference.chunked_form
    # The first column is that of the first query's window: columns are added, or left out.
    left, right = size - 1 - (columns - length), blocks * block - length
    rows = (
        _pad(query, 0, right)
        .unflatten(2, (blocks, block))
        .unflatten(1, (kv_heads, heads // kv_heads))
    )
    rows = rows.transpose(2, 3).flatten(3, 4)  # (B, H_kv, blocks, H / H_kv * block, D)
    key, value = (_in_blocks(x, left, right, span, block) for x in (key, value))
    dtype = accumulation_dtype(query.dtype)
    with without_autocast(query.device.type):
        # (B, H_kv, blocks, H / H_kv, block, span)
        scores = (rows.to(dtype) @ key.to(dtype).mT).unflatten(3, (heads // kv_heads, block))
        if mask is not None or block > 1:
            mask = query.new_ones(1, columns, dtype=torch.bool) if mask is None else mask
            exists = _in_blocks(mask[:, None, :, None], left, right, span, block)
            visible = _visible(exists[:, 0, ..., 0], size)
            scores = scores.masked_fill(~visible[:, None, :, None], -torch.inf)
        largest = scores.detach().amax(-1, keepdim=True)  # cancels, and so do its gradients
        weights = (scores - largest).exp()
        total = weights.sum(-1, keepdim=True)
        sums = weights.to(value.dtype).flatten(3, 4) @ value
        out = (sums.unflatten(3, (heads // kv_heads, block)) / total).to(value.dtype)
        log_sum = largest + total.log()

    def in_order(x: Tensor) -> Tensor:
        return x.transpose(2, 3).reshape(batch, heads, blocks * block, x.shape[-1])[:, :, :length]

    return in_order(out), in_order(log_sum)[..., 0]


def _pad(x: Tensor, left: int, right: int) -> Tensor:
    """x (B, H, L, D) with more or, where a number is below 0, fewer positions at its ends."""
    if torch.compiler.is_exporting() or left > 0 or right > 0:
        return F.pad(x, (0, 0, left, right))
    return x[:, :, -left:]  # a view: a step of one token copies nothing


def _in_blocks(x: Tensor, left: int, right: int, span: int, block: int) -> Tensor:
    """The columns of each block, (B, H_kv, blocks, span, ...)."""
    x = _pad(x, left, right)
    if torch.compiler.is_exporting():  # a graph that fits all lengths compares no sizes
        first = torch.arange(0, x.shape[2] - span + 1, block, device=x.device)
        return x[:, :, first[:, None] + torch.arange(span, device=x.device)]
    return x[:, :, None] if x.shape[2] == span else x.unfold(2, span, block).transpose(3, 4)


def _visible(mask: Tensor, size: int) -> Tensor:
    """The columns that queries of a block see: (B, blocks, block, span) bool; each sees its own."""
    column = torch.arange(mask.shape[-1], device=mask.device)
    distance = column[size - 1 :, None] - column
    return (distance >= 0) & (distance < size) & (mask[:, :, None] | (distance == 0))
