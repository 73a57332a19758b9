"""The paper's linear attention: a state of fixed size, a step of constant cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

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
from linattn_core.state import decay_state
from linattn_models.attention.base import Mixer
from linattn_models.attention.blocks import (
    block_lengths,
    join_blocks,
    running_sums,
    split_blocks,
)
from linattn_models.attention.config import Linear
from linattn_models.attention.decay import Decay
from linattn_models.attention.windowed import Window
from linattn_models.basics.packing import Packing, past_lengths
from linattn_models.state import Cursor, LayerState, WindowCache
from linattn_models.weights import description

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class LinearLayer(Protocol):
    """What `operator_settings` and `attend_in_parts` read of a layer.

    Attributes:
        feature_map: a submodule, so that random or learned features are saved with the model.
        decay: the decay of each head, or None.
        eps: added to the denominator.
        backend: the backend of the operator, "auto" or one of `linattn_core.backends()`. It may be
            set at any time and is not saved with the model. A model with another backend than
            "auto" is not compiled for decoding.
        mesh: set by `ContextParallel`: the ranks that each hold a part of the length.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    feature_map: FeatureMap
    decay: Decay | None
    eps: float
    backend: str
    mesh: DeviceMesh | None


def build_feature_map(
    feature_map: str | FeatureMap,
    options: Mapping[str, Any],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> FeatureMap:
    """phi of a layer; refuses a map with weights for other heads than those of queries and keys."""
    phi = get_feature_map(feature_map, head_dim, **options)
    if not isinstance(phi, Hedgehog) or phi.query_weight.ndim == 2:
        return phi
    heads = len(phi.query_weight), len(phi.key_weight)
    if heads == (num_heads, num_kv_heads):
        return phi
    wanted = f"weights for {num_heads} heads of queries and {num_kv_heads} of keys, or shared"
    got, advice = f"{heads[0]} and {heads[1]}", "correct its num_heads and num_kv_heads"
    raise ValueError(expected("the Hedgehog map", wanted, got, advice))


def spread_for(feature_map: FeatureMap) -> float:
    """The standard deviation of the initial queries and keys, for normalized inputs."""
    # elu + 1 and relu bend at 0, so their inputs have to lie well on both sides of it.
    return 1.0 if feature_map.pointwise is None else 2.0


def operator_settings(layer: LinearLayer) -> dict[str, Any]:
    """The arguments that are the same in every call of the operator and of its step."""
    return {
        "feature_map": layer.feature_map,
        "log_decay": None if layer.decay is None else layer.decay(),
        "enable_gqa": layer.num_kv_heads != layer.num_heads,
        "eps": layer.eps,
        "backend": layer.backend,
    }


def attend_in_parts(layer: LinearLayer, *tensors: Tensor, **options: Any) -> Any:
    """`linear_attention` with the settings of the layer, over all ranks of its mesh."""
    options |= operator_settings(layer)
    if layer.mesh is None:
        return linear_attention(*tensors, **options)
    from linattn_core.distributed import context_parallel_attention

    return context_parallel_attention(*tensors, mesh=layer.mesh, **options)


def zero_sums(
    layer: LinearLayer, batch: int, device: torch.device, dtype: torch.dtype
) -> LinearAttentionState:
    """S = 0 and z = 0, a state for sequences of any length."""
    features = layer.feature_map.feature_dim(layer.head_dim)
    return LinearAttentionState.zeros(
        batch, layer.num_kv_heads, features, layer.head_dim, dtype=dtype, device=device
    )


def step_in_place(
    layer: LinearLayer, query: Tensor, key: Tensor, value: Tensor, state: LinearAttentionState
) -> tuple[Tensor, LinearAttentionState]:
    """One position, (B, H, D) -> (B, H, D); updates the state in place without gradients."""
    inplace = not torch.is_grad_enabled()
    settings = operator_settings(layer)
    return linear_attention_step(query, key, value, state, inplace=inplace, **settings)


class LinearMixer(Mixer):
    """Heads attend by phi(q)^T S / (phi(q)^T z + eps) (equations 4 to 12, 16 to 20 of the paper).

    With a window, they read the last keys by softmax, and linearly those before; see `Linear`.

    With `causal_block`, the queries of a block read the sums over it and all blocks before it. With
    a decay too, the sums are multiplied once for each block, by the factor to the power of its
    positions, and none of a block's own keys counts less.

    Attributes:
        feature_map, decay, eps, backend, mesh: as for `LinearLayer`.
        window_size: w; 0 without a window.
        log_gamma: (H,), the trained weight of linear attention beside a window; else None.
    """

    mesh: DeviceMesh | None = None

    def __init__(
        self, attention: Linear, num_heads: int, head_dim: int, is_causal: bool, **settings: Any
    ) -> None:
        super().__init__(num_heads, head_dim, is_causal, **settings)
        self.feature_map = build_feature_map(
            attention.feature_map, dict(attention.feature_map_options),
            num_heads, self.num_kv_heads, head_dim,
        )  # fmt: skip
        self.decay: Decay | None = None
        if attention.decay is not None:
            self.decay = Decay(attention.decay, self.num_kv_heads, attention.decay_range)
        self.eps = attention.eps
        self.backend = "auto"
        self.window_size = attention.window_size
        self.log_gamma: nn.Parameter | None = None
        self.spread = spread_for(self.feature_map)
        if not self.window_size:
            return
        if self.feature_map.scales_queries:  # one normalizer cannot undo a factor of each query
            wanted = "a map without a factor of each query beside a window"
            got, advice = repr(attention.feature_map), "pass window_size=0"
            raise ValueError(expected("feature_map", wanted, got, advice))
        self.log_gamma = nn.Parameter(torch.zeros(num_heads))
        self.spread = 1.0  # that of softmax, whose scores grow with it

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """S = 0 and z = 0, a state for sequences of any length; with a window, an empty one too."""
        if not self.window_size:
            return zero_sums(self, batch, device, dtype)
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
        causal_block: int | None = None,
    ) -> Tensor:
        """Query (B, H, N, D), key and value (B, H_kv, N, D) -> (B, H, N, D) in O(N) time.

        With `causal_block`, blocks of another size than the configuration's.
        """
        if self.window_size:
            return self._window().attend(query, key, value, mask)
        block = self.causal_block if causal_block is None else causal_block
        if block > 1:
            return self._attend_blocks(query, key, value, block, lengths, None, mask)[0]
        out: Tensor = attend_in_parts(
            self, query, key, value, is_causal=self.is_causal, key_lengths=lengths, attn_mask=mask
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
        if self.window_size:
            return self._window().attend_and_keep(query, key, value, lengths, state, cursor)
        sums = cast(LinearAttentionState | None, state)
        if self.causal_block > 1:
            return self._attend_blocks(query, key, value, self.causal_block, lengths, sums)
        return linear_attention(
            query,
            key,
            value,
            is_causal=True,
            key_lengths=lengths,
            initial_state=sums,
            return_state=True,
            **operator_settings(self),
        )

    def attend_packed(
        self,
        projected: tuple[Tensor, Tensor, Tensor],
        packing: Packing,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend_and_keep` for packed rows, (1, H, T, D); blocks and windows are padded."""
        if self.causal_block > 1 or self.window_size:
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
            **operator_settings(self),
        )

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """Adds one key to the sums and reads them, at the same cost for every position."""
        if self.window_size:
            return self._window().attend_next(query, key, value, state, cursor)
        return step_in_place(self, query, key, value, cast(LinearAttentionState, state))

    def describe(self) -> tuple[Affine, Affine]:
        """The two projections, `qkv` and `out`, for a backend that compiles whole steps."""
        description.require(self, LinearMixer)
        if self.backend != "auto":
            advice = "pass the backend to compile_decoder instead"
            raise CannotCompile(expected("the layer's backend", "'auto'", self.backend, advice))
        if self.feature_map.pointwise is None:
            wanted = "one of each number alone: 'elu', 'relu' or 'identity'"
            kind = type(self.feature_map).__name__
            raise CannotCompile(expected("the feature map", wanted, kind, "decode eagerly"))
        return description.affine(self.qkv), description.affine(self.out)

    def block_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what `attend_block` knows of a sequence: S and z."""
        z = (self.num_kv_heads, self.feature_map.feature_dim(self.head_dim))
        return (*z, self.head_dim), z

    def attend_block(
        self,
        projected: Sequence[Tensor],
        state: tuple[Tensor, Tensor],
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, LinearAttentionState]:
        """The positions as one block that sees itself whole and the sums before it.

        Args:
            projected: query (B, H, N, D), key and value (B, H_kv, N, D).

        Returns:
            (B, H, N, D), and the sums after the block: exp(N log_decay) S + phi(K)^T V.
        """
        query, key, value = projected
        state = LinearAttentionState(*state)
        if self.decay is not None:
            count = key.shape[2] if lengths is None else lengths[:, None]
            state = decay_state(state, (count * self.decay()).exp().to(state.z.dtype))
        settings = operator_settings(self) | {"log_decay": None}
        return linear_attention(
            query,
            key,
            value,
            key_lengths=lengths,
            initial_state=state,
            return_state=True,
            **settings,
        )

    def _attend_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        block: int,
        lengths: Tensor | None,
        state: LinearAttentionState | None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, LinearAttentionState]:
        """All blocks by two calls: their own sums, then their queries on the running sums."""
        batch, _, length, _ = query.shape
        own = block_lengths(batch, length, block, lengths, query.device)
        counts, seen = own, None
        if mask is not None:
            seen = split_blocks(mask[:, None, :, None], block)[:, 0, :, 0]
            counts = (seen & ~past_lengths(own.flatten(), block)).sum(1).view_as(own)
        query, key, value = (split_blocks(x, block) for x in (query, key, value))
        settings = operator_settings(self) | {"log_decay": None}
        padded = lengths is not None or own.shape[1] * block != length
        _, sums = linear_attention(
            query[:, :, :0],
            key,
            value,
            key_lengths=own.flatten() if padded else None,
            attn_mask=seen,
            return_state=True,
            **settings,
        )
        sums = LinearAttentionState(*(x.unflatten(0, (batch, own.shape[1])) for x in sums))
        factors = None if self.decay is None else counts.unsqueeze(-1) * self.decay()
        running = running_sums(sums, factors, state)
        before = LinearAttentionState(*(x.flatten(0, 1) for x in running))
        out = linear_attention(
            query, key[:, :, :0], value[:, :, :0], initial_state=before, **settings
        )
        final = LinearAttentionState(running.s[:, -1], running.z[:, -1])
        return join_blocks(out, batch, length), final

    def _window(self) -> Window:
        assert self.log_gamma is not None, "a layer with a window has its weight"
        return Window(self.window_size, self.feature_map, self.log_gamma, self.backend)
