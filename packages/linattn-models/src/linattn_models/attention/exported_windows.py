"""Attention with a window for exported graphs: no size is compared, so a graph fits all lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import linear_attention
from linattn_models.attention.windows import Window, scale_scores, share_of_linear, softmax_windows


def attend_in_graph(
    window: Window, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """As `attend_windows` for whole sequences; the sums get each key w positions late."""
    length, size, log_decay = key.shape[2], window.size, window.log_decay
    query, key = scale_scores(query, key)
    out, log_sum = softmax_windows(query, key, value, mask, size)
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
