"""Linear attention beside a window of softmax, with a state of fixed size."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from linattn_core.decoder_spec import Affine
from linattn_core.errors import expected
from linattn_core.torch_private import find_observer
from linattn_models import description
from linattn_models.attention.base import Mixer, is_locked, is_writable
from linattn_models.attention.config import Linear
from linattn_models.attention.linear import LinearHeads
from linattn_models.attention.windows import attend_windows
from linattn_models.state import Cursor, LayerState, WindowCache


class WindowedMixer(LinearHeads, Mixer):
    """Heads attend by softmax to the last w keys, and linearly to those before; see `Linear`.

    Attributes:
        log_gamma: (H,), the trained weight of linear attention beside the window.
    """

    def __init__(
        self, attention: Linear, num_heads: int, head_dim: int, is_causal: bool, **settings: Any
    ) -> None:
        Mixer.__init__(self, attention, num_heads, head_dim, is_causal, **settings)
        options = attention.feature_map_options
        self.add_features(attention.feature_map, options, None, attention.eps)
        self.window_size = attention.window_size
        self.log_gamma = nn.Parameter(torch.zeros(num_heads))
        self.spread = 1.0  # that of softmax, whose scores grow with it

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """An empty window, S = 0 and z = 0."""
        shape = (batch, self.num_kv_heads, self.window_size, self.head_dim)
        keys = torch.zeros(shape, dtype=dtype, device=device)
        return WindowCache(keys, torch.zeros_like(keys), *self.zero_state(batch, device, dtype))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Query (B, H, N, D), key and value (B, H_kv, N, D) -> (B, H, N, D) in O(N w) time.

        A row's padding comes after all its queries, so that the lengths are not needed.
        """
        return self._attend(query, key, value, mask, None, None)[0]

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, starting from a state or None; also the state after each row's keys."""
        batch, _, length, _ = key.shape
        start, mask, sums = cursor.rows(batch, key.device), None, None  # start: (B,)
        cache = cast(WindowCache | None, state)
        if cache is None and length == 0:
            empty = self.initial_state(batch, None, key.device, key.dtype)
            return value.new_zeros(query.shape), empty
        if cache is not None:
            cache = cache.clone() if is_locked(cache.keys) else cache
            times = start.unsqueeze(1) - self.window_size + self._slots(key)  # (B, w), in order
            slots = times % self.window_size
            key = torch.cat((_take(cache.keys, slots), key), 2)
            value = torch.cat((_take(cache.values, slots), value), 2)
            mask = torch.cat((times >= 0, times.new_ones(batch, length, dtype=torch.bool)), 1)
            sums = cache.sums
        out, sums = self._attend(query, key, value, mask, sums, lengths)
        if sums is None:
            sums = self.zero_state(batch, key.device, key.dtype)
        # The last position in each slot, and its column.
        end = (start + (length if lengths is None else lengths)).unsqueeze(1)
        times = end - 1 - (end - 1 - self._slots(key)) % self.window_size  # (B, w)
        columns = times - start.unsqueeze(1) + (key.shape[2] - length)
        window = [
            _take(x, columns.clamp(min=0)) * (times >= 0).view(batch, 1, -1, 1).to(x.dtype)
            for x in (key, value)
        ]
        return out, WindowCache(*window, *sums)

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Reads the window and the sums, at the same cost for every position."""
        query, key, value = (x.unsqueeze(2) for x in (query, key, value))
        heads, after = self.attend_and_keep(query, key, value, None, None, state, cursor)
        if is_writable(state[0]):
            for own, new in zip(state, after, strict=True):
                own.copy_(new)
            after = state
        return heads.squeeze(2), after

    def describe(self) -> tuple[Affine, Affine]:
        """The two projections, `qkv` and `out`, for a backend that compiles whole steps."""
        description.require(self, WindowedMixer)
        return self.describe_projections()

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        sums: Any,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Any]:
        if find_observer((query,)) == "onnx":
            wanted, got = "attention without a window", f"window_size={self.window_size}"
            advice = "its graph would fit one length only; use torch.export"
            raise NotImplementedError(expected("torch.onnx.export", wanted, got, advice))
        root = self.head_dim**-0.25
        return attend_windows(
            query * root, key * root, value, mask, sums, lengths, window_size=self.window_size,
            feature_map=self.feature_map, log_gamma=self.log_gamma,
        )  # fmt: skip

    def _slots(self, like: Tensor) -> Tensor:
        return torch.arange(self.window_size, device=like.device)


def _take(x: Tensor, columns: Tensor) -> Tensor:
    """The columns (B, w) of x (B, H, L, D), (B, H, w, D)."""
    batch, heads, _, dim = x.shape
    index = columns.view(batch, 1, -1, 1).expand(batch, heads, columns.shape[1], dim)
    return x.gather(2, index)
