"""A window of softmax beside linear attention, continued from a state of fixed size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention_step
from linattn_core.autocast import without_autocast
from linattn_core.state import accumulation_dtype
from linattn_models.attention.windows import EPS, Window, attend_windows, share_of_linear
from linattn_models.state import WindowCache


def continue_windows(
    window: Window,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    start: Tensor,
    cache: WindowCache | None,
) -> tuple[Tensor, WindowCache]:
    """As `attend_windows` for the positions after a cache.

    Args:
        window: its decay is that of the N positions.
        query: (B, H, N, D), without the scale of the scores.
        key, value: (B, H_kv, N, D).
        lengths: (B,) positions of each row, the others are padding on the right; None for all N.
        start: (B,) int64, the position of each row's first query.
        cache: of all positions before; None if there are none.

    Returns:
        out (B, H, N, D), and the cache after each row's last position, in new memory.
    """
    (batch, kv_heads, length, dim), size = key.shape, window.size
    features, mask, sums = window.feature_map.feature_dim(dim), None, None
    places: dict[str, Any] = {"dtype": key.dtype, "device": key.device}
    if cache is None and length == 0:
        sizes = (batch, kv_heads, size, features, dim)
        empty = WindowCache.zeros(*sizes, gated=window.is_gated, **places)
        return value.new_zeros(query.shape), empty
    kept = _with_decay(window, key)
    every_slot = torch.arange(size, device=key.device)
    if cache is not None:
        times = start.unsqueeze(1) - size + every_slot  # (B, w), in order
        slots = times % size
        kept = torch.cat((_take(cache.keys, slots), kept), 2)
        value = torch.cat((_take(cache.values, slots), value), 2)
        mask = torch.cat((times >= 0, times.new_ones(batch, length, dtype=torch.bool)), 1)
        sums = cache.sums
    key, log_decay = _without_decay(window, kept)
    window = window._replace(log_decay=log_decay)
    out, sums = attend_windows(window, query, key, value, mask, sums, lengths)
    if sums is None:
        sums = LinearAttentionState.zeros(batch, kv_heads, features, dim, **places)
    # The last position in each slot, and its column.
    end = (start + (length if lengths is None else lengths)).unsqueeze(1)
    times = end - 1 - (end - 1 - every_slot) % size  # (B, w)
    columns = times - start.unsqueeze(1) + (key.shape[2] - length)
    written = (times >= 0)[:, None, :, None]
    keys, values = (_take(x, columns.clamp(min=0)) * written.to(x.dtype) for x in (kept, value))
    return out, WindowCache(keys, values, *sums)


class WindowSlots(NamedTuple):
    """Where a step of rows at positions p (B,) reads and writes; the same in all layers.

    Attributes:
        own: (B,) int64, p mod w, the slot of the step's own key.
        empty: (B, w) bool, the slots that hold no key after the step.
        leaving: (B,) int64, the row where its window was full, so that a key leaves it, or -1.
    """

    own: Tensor
    empty: Tensor
    leaving: Tensor

    @classmethod
    def at(cls, position: Tensor, window_size: int) -> WindowSlots:
        """The slots of a step at these positions."""
        every_slot = torch.arange(window_size, device=position.device)
        rows = torch.arange(position.shape[0], device=position.device)
        leaving = torch.where(position >= window_size, rows, -1)
        return cls(position % window_size, every_slot > position.unsqueeze(1), leaving)


def step_windows(
    window: Window,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: WindowCache,
    slots: WindowSlots,
) -> Tensor:
    """One position of each row, as `continue_windows`; updates the cache in place.

    It never reads a number from the device, so that a CUDA graph can repeat it. The windows are
    read where they are: softmax does not ask for the order of its keys.

    Args:
        query: (B, H, D), without the scale of the scores.
        key, value: (B, H_kv, D).

    Returns:
        (B, H, D).

    Cost: O(H D (w + F)), at every position.
    """
    keys, values, _, z = cache
    (_, kv_heads, _, dim), dtype = values.shape, accumulation_dtype(keys.dtype)
    root = dim**-0.25
    with without_autocast(keys.device.type):
        last_key, last_value = (
            _exchange(x, slots.own, new).to(dtype)
            for x, new in ((keys, _with_decay(window, key)), (values, value))
        )
        last_key, last_decay = _without_decay(window, last_key)

        scaled = query.unsqueeze(2).to(dtype) * root  # (B, H, 1, D)
        phi_query, phi_key = window.feature_map(scaled, last_key.unsqueeze(2) * root)
        far, _ = linear_attention_step(
            phi_query.squeeze(2), phi_key.squeeze(2), last_value, cache.sums,
            feature_map="identity", state_indices=slots.leaving, normalize=False, inplace=True,
            enable_gqa=bool(query.shape[1] != kv_heads), backend=window.backend,
            log_decay=last_decay,
        )  # fmt: skip
        groups = kv_heads, query.shape[1] // kv_heads
        grouped = phi_query.squeeze(2).unflatten(1, groups)  # (B, H_kv, H / H_kv, F)
        normalizer = (grouped @ z.unsqueeze(-1)).flatten(1, 2)  # (B, H, 1), 0 without sums

        rows = (scaled * root).squeeze(2).unflatten(1, groups)
        scores = rows @ keys[..., :dim].to(dtype).mT  # (B, H_kv, H / H_kv, w)
        scores = scores.masked_fill(slots.empty[:, None, None], -torch.inf)
        log_sum = scores.logsumexp(-1, keepdim=True)
        near = ((scores - log_sum).exp() @ values.to(dtype)).flatten(1, 2)
        share = share_of_linear(window, scaled, normalizer, log_sum.flatten(1, 2))
        return torch.lerp(near, far / (normalizer + EPS), share).to(value.dtype)


def _with_decay(window: Window, key: Tensor) -> Tensor:
    """Keys (..., D) as a cache keeps them: each followed by log_decay (...) of its own, if any."""
    if window.log_decay is None or not window.is_gated:
        return key
    return torch.cat((key, window.log_decay.unsqueeze(-1).to(key.dtype)), -1)


def _without_decay(window: Window, keys: Tensor) -> tuple[Tensor, Tensor | None]:
    """The inverse for keys of a cache; a log_decay of all positions stays what it is."""
    return (keys[..., :-1], keys[..., -1]) if window.is_gated else (keys, window.log_decay)


def _exchange(x: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Writes new (B, H, D) into the slot (B,) of each row of x (B, H, w, D); what was there."""
    index = slots[:, None, None, None].expand(*new.shape[:2], 1, new.shape[2])
    before = x.gather(2, index).squeeze(2)
    x.scatter_(2, index, new.unsqueeze(2).to(x.dtype))
    return before


def _take(x: Tensor, columns: Tensor) -> Tensor:
    """The columns (B, w) of x (B, H, L, D), (B, H, w, D)."""
    batch, heads, _, dim = x.shape
    index = columns[:, None, :, None].expand(batch, heads, columns.shape[1], dim)
    return x.gather(2, index)
