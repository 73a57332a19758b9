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
from linattn_models.attention.window_states import WindowSlots, continue_windows, step_windows
from linattn_models.attention.windows import attend_windows
from linattn_models.state import Cursor, LayerState, WindowCache, of_another_model


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
        if self.feature_map.scales_queries:  # one normalizer cannot undo a factor of each query
            wanted = "a map without a factor of each query beside a window"
            got, advice = repr(attention.feature_map), "pass window_size=0"
            raise ValueError(expected("feature_map", wanted, got, advice))
        self.window_size = attention.window_size
        self.log_gamma = nn.Parameter(torch.zeros(num_heads))
        self.spread = 1.0  # that of softmax, whose scores grow with it

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """An empty window, S = 0 and z = 0."""
        features = self.feature_map.feature_dim(self.head_dim)
        sizes = (batch, self.num_kv_heads, self.window_size, features, self.head_dim)
        return WindowCache.zeros(*sizes, dtype=dtype, device=device)

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
        self._refuse_onnx(query)
        root = self.head_dim**-0.25
        size, settings = self.window_size, self._window_settings()
        return attend_windows(
            query * root, key * root, value, mask, None, window_size=size, **settings
        )[0]

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
        self._refuse_onnx(query)
        cache = cast(WindowCache | None, state)
        if cache is not None and is_locked(cache.keys):
            cache = cache.clone()
        start = cursor.rows(key.shape[0], key.device)
        return continue_windows(
            query, key, value, lengths, start, cache,
            window_size=self.window_size, **self._window_settings(),
        )  # fmt: skip

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Reads the window and the sums, at the same cost for every position."""
        if is_writable(state[0]):
            self._refuse_onnx(query)
            slots = WindowSlots.at(cursor.rows(key.shape[0], key.device), self.window_size)
            cache, settings = self._own_cache(state, key), self._window_settings()
            return step_windows(query, key, value, cache, slots, **settings), state
        query, key, value = (x.unsqueeze(2) for x in (query, key, value))
        heads, state = self.attend_and_keep(query, key, value, None, None, state, cursor)
        return heads.squeeze(2), state

    def describe(self) -> tuple[Affine, Affine]:
        """The two projections, `qkv` and `out`, for a backend that compiles whole steps."""
        description.require(self, WindowedMixer)
        return self.describe_projections()

    def _own_cache(self, state: LayerState, like: Tensor) -> WindowCache:
        """The cache of a step, which would write other sizes and dtypes without an error.

        One that was prefilled inside autocast has the dtype of its products: it steps there alone.
        """
        cache = cast(WindowCache, state)
        shape = (self.num_kv_heads, self.window_size, self.head_dim)
        dtypes = (self.log_gamma.dtype, like.dtype)  # inside autocast, that of its products
        if cache.keys.shape[1:] != shape or cache.keys.dtype not in dtypes:
            own = self.initial_state(1, None, like.device, self.log_gamma.dtype)
            raise of_another_model("a layer of the state", own, cache)
        return cache

    def _window_settings(self) -> dict[str, Any]:
        return {
            "feature_map": self.feature_map,
            "log_gamma": self.log_gamma,
            "backend": self.backend,
        }

    def _refuse_onnx(self, query: Tensor) -> None:
        if find_observer((query,)) == "onnx":
            wanted, got = "attention without a window", f"window_size={self.window_size}"
            advice = "its graph would fit one length only; use torch.export"
            raise NotImplementedError(expected("torch.onnx.export", wanted, got, advice))
