"""The paper's linear attention: a state of fixed size, a step of constant cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    get_feature_map,
    linear_attention,
    linear_attention_step,
)
from linattn_core.decoder_spec import Affine, CannotCompile
from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_models import description
from linattn_models.attention.base import Mixer
from linattn_models.attention.config import Linear
from linattn_models.attention.decay import Decay
from linattn_models.attention.projections import Projections
from linattn_models.packing import Packing
from linattn_models.state import Cursor, LayerState


class LinearHeads(Projections):
    """Heads that attend by phi(q)^T S / (phi(q)^T z + eps).

    Attributes:
        feature_map: a submodule, so that random or learned features are saved with the model.
        decay: the decay of each head, or None.
        eps: added to the denominator.
        spread: standard deviation of the initial queries and keys, for normalized inputs.
        backend: the backend of the operator, "auto" or one of `linattn_core.backends()`. It may be
            set at any time and is not saved with the model. A model with another backend than
            "auto" is not compiled for decoding.
    """

    feature_map: FeatureMap
    decay: Decay | None
    eps: float
    backend: str

    def add_features(
        self, feature_map: str | FeatureMap, options: Any, decay: str | None, eps: float
    ) -> None:
        """Makes the feature map and the decay; called once, after the projections are made."""
        self.feature_map = get_feature_map(feature_map, self.head_dim, **dict(options))
        _check_heads(self.feature_map, self.num_heads, self.num_kv_heads)
        self.decay = None if decay is None else Decay(decay, self.num_kv_heads)
        self.eps = eps
        self.backend = "auto"
        # elu + 1 and relu bend at 0, so their inputs have to lie well on both sides of it.
        self.spread = 1.0 if self.feature_map.pointwise is None else 2.0

    def zero_state(
        self, batch: int, device: torch.device, dtype: torch.dtype
    ) -> LinearAttentionState:
        """S = 0 and z = 0, a state for sequences of any length."""
        features = self.feature_map.feature_dim(self.head_dim)
        return LinearAttentionState.zeros(
            batch, self.num_kv_heads, features, self.head_dim, dtype=dtype, device=device
        )

    def settings(self) -> dict[str, Any]:
        """The arguments that are the same in every call of the operator and of its step."""
        return {
            "feature_map": self.feature_map,
            "log_decay": None if self.decay is None else self.decay(),
            "enable_gqa": self.num_kv_heads != self.num_heads,
            "eps": self.eps,
            "backend": self.backend,
        }

    def describe_projections(self) -> tuple[Affine, Affine]:
        """`qkv` and `out`; refuses a backend and a feature map that no decoder compiles."""
        if self.backend != "auto":
            advice = "pass the backend to compile_decoder instead"
            raise CannotCompile(expected("the layer's backend", "'auto'", self.backend, advice))
        if self.feature_map.pointwise is None:
            wanted = "one of each number alone: 'elu', 'relu' or 'identity'"
            kind = type(self.feature_map).__name__
            raise CannotCompile(expected("the feature map", wanted, kind, "decode eagerly"))
        return description.affine(self.qkv), description.affine(self.out)

    def step_heads(
        self, query: Tensor, key: Tensor, value: Tensor, state: LinearAttentionState
    ) -> tuple[Tensor, LinearAttentionState]:
        """One position, (B, H, D) -> (B, H, D); updates the state in place without gradients."""
        inplace = not torch.is_grad_enabled()
        return linear_attention_step(query, key, value, state, inplace=inplace, **self.settings())


class LinearMixer(LinearHeads, Mixer):
    """Heads attend by phi(q)^T S / (phi(q)^T z + eps) (equations 4 to 12, 16 to 20 of the paper).

    With `causal_block`, each block of positions is one non-causal call, whose initial state is the
    sums over all blocks before it.
    """

    def __init__(
        self, attention: Linear, num_heads: int, head_dim: int, is_causal: bool, **settings: Any
    ) -> None:
        Mixer.__init__(self, attention, num_heads, head_dim, is_causal, **settings)
        options = attention.feature_map_options
        self.add_features(attention.feature_map, options, attention.decay, attention.eps)

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """S = 0 and z = 0, a state for sequences of any length."""
        return self.zero_state(batch, device, dtype)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Query (B, H, N, D), key and value (B, H_kv, N, D) -> (B, H, N, D) in O(N) time."""
        if self.causal_block > 1:
            return self._attend_blocks(query, key, value, lengths, None, mask)[0]
        out: Tensor = linear_attention(
            query,
            key,
            value,
            is_causal=self.is_causal,
            key_lengths=lengths,
            attn_mask=mask,
            **self.settings(),
        )
        return out

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
        sums = cast(LinearAttentionState | None, state)
        if self.causal_block > 1:
            return self._attend_blocks(query, key, value, lengths, sums)
        return self._attend_from(query, key, value, lengths, sums)

    def attend_packed(
        self,
        projected: Sequence[Tensor],
        packing: Packing,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend_and_keep` for packed rows, (1, H, T, D); with `causal_block`, padded ones."""
        if self.causal_block > 1:
            return super().attend_packed(projected, packing, max_length, state, cursor)
        query, key, value = projected
        return linear_attention(
            query,
            key,
            value,
            is_causal=True,
            cu_seqlens=packing.cu_seqlens,
            initial_state=cast(LinearAttentionState | None, state),
            return_state=True,
            **self.settings(),
        )

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Adds one key to the sums and reads them, at the same cost for every position."""
        return self.step_heads(query, key, value, cast(LinearAttentionState, state))

    def describe(self) -> tuple[Affine, Affine]:
        """The two projections, `qkv` and `out`, for a backend that compiles whole steps."""
        description.require(self, LinearMixer)
        return self.describe_projections()

    def _attend_from(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        state: LinearAttentionState | None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, LinearAttentionState]:
        return linear_attention(
            query,
            key,
            value,
            is_causal=self.causal_block == 1,
            key_lengths=lengths,
            attn_mask=mask,
            initial_state=state,
            return_state=True,
            **self.settings(),
        )

    def _attend_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        state: LinearAttentionState | None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, LinearAttentionState]:
        outputs = []
        blocks = (x.split(self.causal_block, dim=2) for x in (query, key, value))
        for index, block in enumerate(zip(*blocks, strict=True)):
            size = block[1].shape[2]
            start = index * self.causal_block
            own = None if lengths is None else (lengths - start).clamp(0, size)
            seen = None if mask is None else mask[:, start : start + size]
            out, state = self._attend_from(block[0], block[1], block[2], own, state, seen)
            outputs.append(out)
        return torch.cat(outputs, dim=2), cast(LinearAttentionState, state)


def _check_heads(feature_map: FeatureMap, num_heads: int, num_kv_heads: int) -> None:
    """Refuses a map with weights for each head where queries or keys have other heads."""
    if not isinstance(feature_map, Hedgehog) or feature_map.query_weight.ndim == 2:
        return
    heads = feature_map.query_weight.shape[0]
    if heads == num_heads == num_kv_heads:
        return
    wanted = f"weights for each of {num_heads} heads, or shared ones"
    if num_heads != num_kv_heads:
        wanted = f"shared weights beside num_kv_heads {num_kv_heads} of {num_heads} heads"
    advice = "leave out its option num_heads"
    raise ValueError(expected("the Hedgehog map", wanted, f"weights for {heads} heads", advice))
