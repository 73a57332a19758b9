"""Softmax over a sliding window, joined to linear attention over all keys before it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention
from linattn_core.autocast import without_autocast
from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_core.state import accumulation_dtype

# Far below the normalizers, so that it changes none; 0 / 0 would be NaN where there is no key.
_EPS = 1e-30
# Products of fewer rows are slow.
_LEAST_BLOCK = 64


class WindowedState(NamedTuple):
    """What a layer keeps of all tokens so far; once the window is full, it does not grow.

    Attributes:
        keys: (B, H_kv, P, D), the last keys, at most w of them.
        values: (B, H_kv, P, M), their values.
        mask: (B, P) bool, False at padding; None if there was no mask.
        linear: the sums over all keys before these; None if there are none.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    linear: LinearAttentionState | None

    @property
    def batch(self) -> int:
        """The number of rows."""
        return self.keys.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.keys, self.values, *(() if self.mask is None else (self.mask,)))
        window: int = sum(x.numel() * x.element_size() for x in tensors)
        return window + (0 if self.linear is None else self.linear.nbytes)

    def index_select(self, indices: Tensor) -> WindowedState:
        """The rows `indices`, (new batch,) int64, as a copy."""
        indices = indices.to(self.keys.device)
        return WindowedState(
            self.keys.index_select(0, indices), self.values.index_select(0, indices),
            None if self.mask is None else self.mask.index_select(0, indices),
            None if self.linear is None else self.linear.index_select(indices),
        )  # fmt: skip


def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    state: WindowedState | None = None,
    *,
    window_size: int,
    feature_map: Hedgehog,
    log_gamma: Tensor,
) -> tuple[Tensor, WindowedState]:
    """Causal attention: softmax for the last w keys, linear attention for all before them.

        O_i = (sum_W exp(Q_i^T K_j) V_j + g_i sum_L phi(Q_i)^T phi(K_j) V_j)
              / (sum_W exp(Q_i^T K_j) + g_i sum_L phi(Q_i)^T phi(K_j))

    W is i - w < j <= i, and L is j <= i - w: softmax and linear attention share a normalizer, as in
    LoLCATs (Zhang et al. 2025, arXiv 2410.10254). phi is a Hedgehog map with weight A, whose
    features have the same sum for every query. Their weight beside the window grows with the query,
    as that of softmax does:

        g_i = (gamma / 4) sum_f (exp(A Q_i)_f + exp(-A Q_i)_f)

    With gamma = 1 both kinds of weights agree for small queries and keys.

    Args:
        query: (B, H, N, D), with the scale of the scores.
        key, value: (B, H_kv, N, D) and (B, H_kv, N, M).
        mask: (B, N) bool, False at keys that do not exist. They take places in the window, so
            padding is exact at the ends of a row, and not between its tokens.
        state: of all tokens before; None if there are none.
        window_size: w.
        feature_map: phi.
        log_gamma: (H,).

    Returns:
        out (B, H, N, M), and the state after the last key.

    Raises:
        ValueError: the state of another model.

    Cost: O(H N (w (D + M) + F M)) time; O(H N w) memory for the scores of the window.
    """
    length, kept = query.shape[2], 0
    if state is not None:
        _check(state, key, value, window_size)
        kept = state.keys.shape[2]
        mask = _join_masks(state.mask, mask, state.batch, kept, length, key.device)
        key, value = torch.cat((state.keys, key), 2), torch.cat((state.values, value), 2)
    out, log_sum = _softmax(query, key, value, mask, window_size)
    linear, first = None if state is None else state.linear, window_size - kept
    if length > first:
        # All keys are `first` places behind these queries: each sees those before its window.
        later, count = query[:, :, first:], length - first
        far, normalizer, linear = linear_attention(
            later, key[:, :, :count], value[:, :, :count], is_causal=True, feature_map=feature_map,
            attn_mask=None if mask is None else mask[:, None, None, :count], eps=_EPS,
            initial_state=linear, return_normalizer=True, return_state=True,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        log_normalizer = normalizer.clamp_min(_EPS).log() + _log_scale(
            later, feature_map, log_gamma
        )
        share = torch.sigmoid(
            log_normalizer.masked_fill(normalizer <= 0, -torch.inf) - log_sum[:, :, first:]
        )
        joined = torch.lerp(out[:, :, first:].to(far), far, share[..., None].to(far))
        out = joined if first == 0 else torch.cat((out[:, :, :first].to(far), joined), 2)
    # Copies, because views would keep the keys and values of a whole prompt in memory.
    keys, values = (x[:, :, -window_size:].clone() for x in (key, value))
    return out, WindowedState(
        keys, values, None if mask is None else mask[:, -window_size:].clone(), linear
    )


def _log_scale(query: Tensor, feature_map: Hedgehog, log_gamma: Tensor) -> Tensor:
    """log g_i, (B, H, N)."""
    dtype = accumulation_dtype(query.dtype)
    with without_autocast(query.device.type):
        projected = query.to(dtype) @ feature_map.query_weight.to(dtype)
        both = torch.cat((projected, -projected), -1)
        return both.logsumexp(-1) + (log_gamma.to(dtype) - math.log(4))[:, None]


def _softmax(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Softmax of each query over its window.

    Args:
        query: (B, H, N, D).
        key, value: (B, H_kv, P + N, ...), those of a state first.
        mask: (B, P + N), or None.
        size: w.

    Returns:
        The attention (B, H, N, M), and the log of its normalizer (B, H, N).

    Blocks of queries see the columns of all their windows.
    """
    (batch, heads, length, _), (kv_heads, columns) = query.shape, key.shape[1:3]
    if torch.compiler.is_compiling() and length > 1:
        block = _LEAST_BLOCK  # sizes that depend on the length would be compiled for each length
    else:
        size = min(size, columns)
        block = min(length, max(size, _LEAST_BLOCK))
    blocks, span = -(-length // block), size - 1 + block
    # The first column is that of the first query's window: columns are added, or left out.
    left, right = size - 1 - (columns - length), blocks * block - length
    rows = _pad(query, 0, right).unflatten(2, (blocks, block)).unflatten(1, (kv_heads, -1))
    rows = rows.transpose(2, 3).flatten(3, 4)  # (B, H_kv, blocks, H / H_kv * block, D)
    key, value = (_in_blocks(x, left, right, span, block) for x in (key, value))
    dtype = accumulation_dtype(query.dtype)
    with without_autocast(query.device.type):
        # (B, H_kv, blocks, H / H_kv, block, span)
        scores = (rows.to(dtype) @ key.to(dtype).mT).unflatten(3, (-1, block))
        if mask is not None or block > 1:
            mask = query.new_ones(1, columns, dtype=torch.bool) if mask is None else mask
            visible = _visible(F.pad(mask, (left, right)).unfold(1, span, block), size)
            scores = scores.masked_fill(~visible[:, None, :, None], -torch.inf)
        largest = scores.detach().amax(-1, keepdim=True)  # cancels, and so do its gradients
        weights = (scores - largest).exp()
        total = weights.sum(-1, keepdim=True)
        sums = weights.to(value.dtype).flatten(3, 4) @ value
        out = (sums.unflatten(3, (-1, block)) / total).to(value.dtype)
        log_sum = largest + total.log()

    def in_order(x: Tensor) -> Tensor:
        return x.transpose(2, 3).reshape(batch, heads, blocks * block, -1)[:, :, :length]

    return in_order(out), in_order(log_sum)[..., 0]


def _pad(x: Tensor, left: int, right: int) -> Tensor:
    """x (B, H, L, D) with more or, where a number is below 0, fewer positions at its ends."""
    if left > 0 or right > 0:
        return F.pad(x, (0, 0, left, right))
    return x[:, :, -left:]  # a view: a step of one token copies nothing


def _in_blocks(x: Tensor, left: int, right: int, span: int, block: int) -> Tensor:
    """The columns of each block, (B, H_kv, blocks, span, ...)."""
    x = _pad(x, left, right)
    return x[:, :, None] if x.shape[2] == span else x.unfold(2, span, block).transpose(3, 4)


def _visible(mask: Tensor, size: int) -> Tensor:
    """Which columns the queries of a block see: those of their windows, if they exist.

    Each query sees its own, since softmax needs a key.

    Args:
        mask: (B, blocks, span), of the columns of each block.
        size: w.

    Returns:
        (B, blocks, block, span) bool.
    """
    column = torch.arange(mask.shape[-1], device=mask.device)
    distance = column[size - 1 :, None] - column
    return (distance >= 0) & (distance < size) & (mask[:, :, None] | (distance == 0))


def _join_masks(
    before: Tensor | None, mask: Tensor | None, batch: int, kept: int, length: int,
    device: torch.device,
) -> Tensor | None:  # fmt: skip
    """The mask of a state's keys and of new ones, (B, P + N); None if neither has one."""
    if before is None and mask is None:
        return None
    parts = [
        torch.ones(batch, count, dtype=torch.bool, device=device) if part is None else part
        for part, count in ((before, kept), (mask, length))
    ]
    return torch.cat(parts, 1)


def _check(state: WindowedState, key: Tensor, value: Tensor, size: int) -> None:
    """Refuses a state that does not continue with these keys and values."""
    for name, got, new in (("keys", state.keys, key), ("values", state.values, value)):
        count = got.shape[2]
        fits = count <= size if state.linear is None else count == size
        shape = (*new.shape[:2], count if fits else size, new.shape[3])
        if got.shape != shape:
            advice = "continue with the model and the rows that it comes from"
            wanted = f"{name} of shape {shape}"
            raise ValueError(expected("past_key_values", wanted, tuple(got.shape), advice))
