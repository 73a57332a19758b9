"""Linear attention, the paper's: a state of fixed size, a step of fixed cost."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from linattn_core import (
    LinearAttentionState,
    get_feature_map,
    linear_attention,
    linear_attention_step,
)
from linattn_core.decoding import Affine, CannotCompile
from linattn_core.errors import expected
from linattn_models import description
from linattn_models.attention.base import Mixer
from linattn_models.attention.config import Linear
from linattn_models.state import Cursor, LayerState


class LinearMixer(Mixer):
    """Heads attend by phi(q)^T S / (phi(q)^T z + eps) (equations 4 to 12, 16 to 20 of the paper).

    The feature map is a submodule, so that random or learned features are saved with the model.

    Attributes:
        backend: what runs the operator, "auto" or one of `linattn_core.backends()`. It may be set
            at any time and is not saved with the model. A model that names one steps eagerly.
    """

    def __init__(self, attention: Linear, num_heads: int, head_dim: int, is_causal: bool) -> None:
        super().__init__(attention, num_heads, head_dim, is_causal)
        options = dict(attention.feature_map_options)
        self.feature_map = get_feature_map(attention.feature_map, head_dim, **options)
        self.eps = attention.eps
        self.backend = "auto"
        if self.feature_map.pointwise is not None:
            self.spread = 2.0  # inputs on both sides of the bend at 0

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """S = 0 and z = 0, for any length."""
        features = self.feature_map.feature_dim(self.head_dim)
        return LinearAttentionState.zeros(
            batch, self.num_heads, features, self.head_dim, dtype=dtype, device=device
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, H, N, D) three times -> (B, H, N, D) in O(N)."""
        out: Tensor = linear_attention(
            query, key, value, is_causal=self.is_causal, key_lengths=lengths, **self._settings()
        )
        return out

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        max_length: int | None,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, and the sums over each row's own keys."""
        settings = self._settings()
        return linear_attention(
            query, key, value, is_causal=True, key_lengths=lengths, return_state=True, **settings
        )

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Adds one key to the sums and reads them: the same cost at every position."""
        sums = cast(LinearAttentionState, state)
        inplace = not torch.is_grad_enabled()
        return linear_attention_step(query, key, value, sums, inplace=inplace, **self._settings())

    def describe(self) -> tuple[Affine, Affine]:
        """The projections in and out, for a backend that compiles whole steps."""
        description.require(self, LinearMixer)
        if self.backend != "auto":
            advice = "pass the backend to compile_decoder instead"
            raise CannotCompile(expected("the layer's backend", "'auto'", self.backend, advice))
        if self.feature_map.pointwise is None:
            wanted = "one of each number alone: 'elu', 'relu' or 'identity'"
            kind = type(self.feature_map).__name__
            raise CannotCompile(expected("the feature map", wanted, kind, "decode eagerly"))
        return description.affine(self.qkv), description.affine(self.out)

    def _settings(self) -> dict[str, Any]:
        return {"feature_map": self.feature_map, "eps": self.eps, "backend": self.backend}
