"""The layer's part of linear attention beside a window of softmax: scales, states, refusals."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.torch_private import find_observer
from linattn_models.attention.base import is_locked, is_writable
from linattn_models.attention.exported_windows import attend_in_graph
from linattn_models.attention.window_states import WindowSlots, continue_windows, step_windows
from linattn_models.attention.windows import Window, attend_windows
from linattn_models.state import Cursor, LayerState, WindowCache, of_another_model


class LayerWindow(Window):
    """A window of a layer, whose methods are those of a `Mixer`."""

    __slots__ = ()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Query (B, H, N, D), key and value (B, H_kv, N, D) -> (B, H, N, D) in O(N w) time.

        A row's padding comes after all its queries, so that the lengths are not needed.
        """
        if torch.compiler.is_exporting():
            return attend_in_graph(self, query, key, value, mask)
        return attend_windows(self, query, key, value, mask, None)[0]

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, starting from a state or None; also the state after each row's keys."""
        self._refuse_onnx(query)
        cache = cast(WindowCache | None, state)
        if cache is not None and is_locked(cache.keys):
            cache = cache.clone()
        start = cursor.rows(key.shape[0], key.device)
        return continue_windows(self, query, key, value, lengths, start, cache)

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Reads the window and the sums, at the same cost for every position."""
        if is_writable(state[0]):
            self._refuse_onnx(query)
            cache = self._own_cache(state, key)
            slots = WindowSlots.at(cursor.rows(key.shape[0], key.device), self.size)
            return step_windows(self, query, key, value, cache, slots), state
        query, key, value = (x.unsqueeze(2) for x in (query, key, value))
        window = self
        if self.is_gated:
            window = self._replace(log_decay=cast(Tensor, self.log_decay).unsqueeze(2))
        heads, state = window.attend_and_keep(query, key, value, None, state, cursor)
        return heads.squeeze(2), state

    def _own_cache(self, state: LayerState, key: Tensor) -> WindowCache:
        """The cache of a step, which would write other sizes and dtypes without an error.

        One that was prefilled inside autocast has the dtype of its products: it steps there alone.
        """
        cache, (_, kv_heads, dim) = cast(WindowCache, state), key.shape
        dtypes = (self.log_gamma.dtype, key.dtype)  # inside autocast, that of its products
        shape = (kv_heads, self.size, dim + self.is_gated)
        if cache.keys.shape[1:] != shape or cache.keys.dtype not in dtypes:
            sizes = (1, kv_heads, self.size, self.feature_map.feature_dim(dim), dim)
            places: dict[str, Any] = {"dtype": self.log_gamma.dtype, "device": key.device}
            own = WindowCache.zeros(*sizes, gated=self.is_gated, **places)
            raise of_another_model("a layer of the state", own, cache)
        return cache

    def _refuse_onnx(self, query: Tensor) -> None:
        if find_observer((query,)) == "onnx":
            wanted, got = "whole sequences of a model with a window", "a state"
            advice = "a state with a window is updated in place; export the forward"
            raise NotImplementedError(expected("torch.onnx.export", wanted, got, advice))
