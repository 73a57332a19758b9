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
from linattn_models.attention.rotary import Rotation
from linattn_models.attention.windowed import LayerWindow
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


def operator_settings(layer: LinearLayer, log_decay: Tensor | None = None) -> dict[str, Any]:
    """The arguments that are the same in every call of the operator and of its step.

    Args:
        log_decay: of each position, of a gated decay; else None.
    """
    return {
        "feature_map": layer.feature_map,
        "log_decay": constant_decay(layer) if log_decay is None else log_decay,
        "enable_gqa": layer.num_kv_heads != layer.num_heads,
        "eps": layer.eps,
        "backend": layer.backend,
    }


def constant_decay(layer: LinearLayer) -> Tensor | None:
    """The log_decay (H_kv,) of all positions; None without one."""
    return None if layer.decay is None or layer.decay.is_gated else cast(Tensor, layer.decay())


def read_decay(layer: LinearLayer, x: Tensor) -> list[Tensor]:
    """The log_decay (..., H_kv) of each position of x (..., E); empty unless the decay is gated."""
    return [] if layer.decay is None or not layer.decay.is_gated else [layer.decay(x)]


def attend_in_parts(
    layer: LinearLayer, *tensors: Tensor, log_decay: Tensor | None = None, **options: Any
) -> Any:
    """`linear_attention` with the settings of the layer, over all ranks of its mesh."""
    options |= operator_settings(layer, log_decay)
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
    layer: LinearLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearAttentionState,
    log_decay: Tensor | None = None,
) -> tuple[Tensor, LinearAttentionState]:
    """One position, (B, H, D) -> (B, H, D); updates the state in place without gradients."""
    inplace = not torch.is_grad_enabled()
    settings = operator_settings(layer, log_decay)
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
        own_heads: set by `TensorParallel`: which of the heads of log_gamma this rank has.
        log_gamma: (H,), the trained weight of linear attention beside a window; else None.
    """

    mesh: DeviceMesh | None = None
    own_heads: slice | None = None

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
            sizes = self.num_kv_heads, num_heads * head_dim
            self.decay = Decay(attention.decay, *sizes, attention.decay_range)
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
        gated = self.decay is not None and self.decay.is_gated
        return WindowCache.zeros(*sizes, gated=gated, dtype=dtype, device=device)

    def split(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, ...]:
        """As `Mixer.split`; then, of a gated decay, log_decay (..., H_kv)."""
        return *super().split(x, rotation), *read_decay(self, x)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
        log_decay: Tensor | None = None,
        causal_block: int | None = None,
    ) -> Tensor:
        """Query (B, H, N, D), key and value (B, H_kv, N, D) -> (B, H, N, D) in O(N) time.

        With `causal_block`, blocks of another size than the configuration's.
        """
        if self.window_size:
            return self._window(log_decay).attend(query, key, value, mask)
        block = self.causal_block if causal_block is None else causal_block
        if block > 1:
            return self._attend_blocks(query, key, value, block, lengths, None, mask, log_decay)[0]
        out: Tensor = attend_in_parts(
            self, query, key, value, is_causal=self.is_causal, key_lengths=lengths,
            attn_mask=mask, log_decay=log_decay,
        )  # fmt: skip
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
        log_decay: Tensor | None = None,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, starting from a state or None; also the state after each row's keys."""
        if self.window_size:
            window = self._window(log_decay)
            return window.attend_and_keep(query, key, value, lengths, state, cursor)
        sums, block = cast(LinearAttentionState | None, state), self.causal_block
        if block > 1:
            return self._attend_blocks(query, key, value, block, lengths, sums, None, log_decay)
        return linear_attention(
            query,
            key,
            value,
            is_causal=True,
            key_lengths=lengths,
            initial_state=sums,
            return_state=True,
            **operator_settings(self, log_decay),
        )

    def attend_packed(
        self,
        projected: tuple[Tensor, ...],
        packing: Packing,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend_and_keep` for packed rows, (1, H, T, D); blocks and windows are padded."""
        if self.causal_block > 1 or self.window_size:
            return super().attend_packed(projected, packing, max_length, state, cursor)
        query, key, value, *log_decay = projected
        return linear_attention(
            query,
            key,
            value,
            is_causal=True,
            cu_seqlens=packing.cu_seqlens,
            initial_state=cast(LinearAttentionState | None, state),
            return_state=True,
            **operator_settings(self, *log_decay),
        )

    def attend_next(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: LayerState,
        cursor: Cursor,
        log_decay: Tensor | None = None,
    ) -> tuple[Tensor, LayerState]:
        """Adds one key to the sums and reads them, at the same cost for every position."""
        if self.window_size:
            return self._window(log_decay).attend_next(query, key, value, state, cursor)
        return step_in_place(self, query, key, value, cast(LinearAttentionState, state), log_decay)

    def describe(self) -> tuple[Affine, Affine]:
        """The two projections, `qkv` and `out`, for a backend that compiles whole steps."""
        description.require(self, LinearMixer)
        if self.backend != "auto":
            advice = "pass the backend to compile_decoder instead"
            raise CannotCompile(expected("the layer's backend", "'auto'", self.backend, advice))
        if self.feature_map.pointwise is None:
            if not isinstance(self.feature_map, Hedgehog):
                wanted = "'elu', 'relu', 'identity' or 'hedgehog'"
                got = type(self.feature_map).__name__
                raise CannotCompile(expected("the feature map", wanted, got, "decode eagerly"))
            description.require(self.feature_map, Hedgehog)
        return description.affine(self.qkv), description.affine(self.out)

    def describe_maps(self) -> tuple[Tensor | None, Tensor | None]:
        """The weights of a learned map for each head of queries and of keys; None for others."""
        phi = self.feature_map
        if not isinstance(phi, Hedgehog):
            return None, None
        sides = (phi.query_weight, self.num_heads), (phi.key_weight, self.num_kv_heads)
        query, key = (x if x.ndim == 3 else x.expand(heads, -1, -1) for x, heads in sides)
        return query, key

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
            projected: that of `project`.

        Returns:
            (B, H, N, D), and the sums after the block: exp(N log_decay) S + phi(K)^T V.
        """
        query, key, value, *log_decay = projected
        state = LinearAttentionState(*state)
        if self.decay is not None:
            exists = key.new_ones(key.shape[0], key.shape[2], dtype=torch.bool)
            if lengths is not None:
                exists = ~past_lengths(lengths, key.shape[2])
            total = self._decay_of_blocks(exists, *log_decay)
            state = decay_state(state, total.exp().to(state.z.dtype))
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
        log_decay: Tensor | None = None,
    ) -> tuple[Tensor, LinearAttentionState]:
        """All blocks by two calls: their own sums, then their queries on the running sums."""
        batch, _, length, _ = query.shape
        own = block_lengths(batch, length, block, lengths, query.device)
        seen = None if mask is None else split_blocks(mask[:, None, :, None], block)[:, 0, :, 0]
        factors = None
        if self.decay is not None:
            exists = ~past_lengths(own.flatten(), block)
            exists = exists if seen is None else seen & exists
            if log_decay is not None:
                log_decay = split_blocks(log_decay.unsqueeze(-1), block).squeeze(-1)
            factors = self._decay_of_blocks(exists, log_decay).unflatten(0, own.shape)
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
        running = running_sums(sums, factors, state)
        before = LinearAttentionState(*(x.flatten(0, 1) for x in running))
        out = linear_attention(
            query, key[:, :, :0], value[:, :, :0], initial_state=before, **settings
        )
        final = LinearAttentionState(running.s[:, -1], running.z[:, -1])
        return join_blocks(out, batch, length), final

    def _decay_of_blocks(self, exists: Tensor, log_decay: Tensor | None = None) -> Tensor:
        """The logarithms (R, H_kv) of the factors of R blocks.

        Args:
            exists: (R, block), which positions of a block there are.
            log_decay: (R, H_kv, block), of a gated decay.
        """
        if log_decay is None:
            return exists.sum(1, keepdim=True) * cast(Tensor, constant_decay(self))
        return log_decay.masked_fill(~exists.unsqueeze(1), 0).sum(-1)

    def _window(self, log_decay: Tensor | None) -> LayerWindow:
        assert self.log_gamma is not None, "a layer with a window has its weight"
        gamma = self.log_gamma if self.own_heads is None else self.log_gamma[self.own_heads]
        log_decay = constant_decay(self) if log_decay is None else log_decay
        return LayerWindow(self.window_size, self.feature_map, gamma, self.backend, log_decay)
