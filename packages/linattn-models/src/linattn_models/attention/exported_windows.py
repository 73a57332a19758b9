"""Attention with a window for exported graphs: no size is compared, so a graph fits all lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import linear_attention
from linattn_core.state import accumulation_dtype
from linattn_models.attention.windows import LEAST_BLOCK, Window, scale_scores, share_of_linear


def attend_in_graph(
    window: Window, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """As `attend_windows` for whole sequences; the sums get each key w positions late."""
    length, size, log_decay = key.shape[2], window.size, window.log_decay
    query, key = scale_scores(query, key)
    out, log_sum = _softmax(query, key, value, mask, size)
    mask = query.new_ones(1, length, dtype=torch.bool) if mask is None else mask
    if log_decay is not None and window.is_gated:
        log_decay = F.pad(log_decay, (size, 0))[:, :, :length]
    late_key, late_value = (F.pad(x, (0, 0, size, 0))[:, :, :length] for x in (key, value))
    far, normalizer = linear_attention(
        query, late_key, late_value, is_causal=True, feature_map=window.feature_map, eps=0.0,
        normalize=False, attn_mask=F.pad(mask, (size, 0))[:, None, None, :length],
        return_normalizer=True, enable_gqa=query.shape[1] != key.shape[1], backend=window.backend,
        log_decay=log_decay,
    )  # fmt: skip
    # Runtimes may lose an eps as small as that of `attend_windows`.
    far = far / torch.where(normalizer > 0, normalizer, 1.0)[..., None]
    share = share_of_linear(window, query, normalizer, log_sum)
    return torch.lerp(out.to(far), far, share[..., None].to(far))


def _softmax(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Softmax of each query over its window (B, H, N, M), and its log normalizer (B, H, N).

    The queries of a block see keys of their own block and of the one before.
    """
    (batch, heads, length, dim), kv_heads = query.shape, key.shape[1]
    block, dtype = max(size, LEAST_BLOCK), accumulation_dtype(query.dtype)
    blocks = (length + block - 1) // block + 1  # one more than needed: see reference.chunked_form
    right = blocks * block - length
    rows = F.pad(query.to(dtype), (0, 0, 0, right))
    rows = rows.reshape(batch, kv_heads, heads // kv_heads, blocks, block, dim)

    def in_pairs(x: Tensor) -> Tensor:
        """(..., L, D) -> (..., blocks, 2 block, D)."""
        padded = F.pad(x, (0, 0, block, right))
        whole = padded.reshape(*x.shape[:-2], blocks + 1, block, x.shape[-1])
        return torch.cat((whole[..., :-1, :, :], whole[..., 1:, :, :]), -2)

    exists = query.new_ones(1, length, dtype=torch.bool) if mask is None else mask
    exists = in_pairs(exists[..., None])[:, None, None, :, None, :, 0]  # (B, 1, 1, blocks, 1, 2 C)
    places = torch.arange(2 * block, device=query.device)
    distance = places[block:, None] - places
    visible = (distance >= 0) & (distance < size) & (exists | (distance == 0))
    scores = rows @ in_pairs(key.to(dtype)).mT.unsqueeze(2)
    scores = scores.masked_fill(~visible, -torch.inf)
    log_sum = scores.logsumexp(-1, keepdim=True)
    out = (scores - log_sum).exp() @ in_pairs(value.to(dtype)).unsqueeze(2)

    def in_order(x: Tensor) -> Tensor:
        return x.reshape(batch, heads, blocks * block, x.shape[-1])[:, :, :length]

    return in_order(out).to(value.dtype), in_order(log_sum)[..., 0]
