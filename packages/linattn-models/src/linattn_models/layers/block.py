"""One layer of a transformer: attention and a feed-forward network."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core import LinearAttentionState
from linattn_core.decoder_spec import CannotCompile, DecoderLayer
from linattn_core.errors import expected
from linattn_models.attention import (
    Attention,
    Linear,
    LinearAttention,
    LinearMixer,
    Mixer,
    SoftmaxMixer,
    build_mixer,
)
from linattn_models.attention.rotary import Rotation, frequencies_of
from linattn_models.basics.initialization import bound_residual_stream, spread_queries_and_keys
from linattn_models.basics.packing import Packing, last_of
from linattn_models.layers.config import ACTIVATIONS, TransformerConfig
from linattn_models.state import Cursor, LayerState
from linattn_models.weights import description

RMS_EPS, LAYER_EPS = 1e-6, 1e-5


class Block(nn.Module):
    """One layer: attention, then a feed-forward network, each with a residual connection.

    With norm_first,    x = x + attention(norm1(x));     x = x + ffn(norm2(x));
    without,            x = norm1(x + attention(x));     x = norm2(x + ffn(x)).

    The feed-forward network is contract(activation(expand(x))), or with a gate
    contract(activation(gate(x)) * expand(x)).

    Cross-attention, if configured, comes between the two, with a norm and a residual connection of
    its own. It reads `memory`, sums that its method `sums` has computed.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        attention = cast(Attention, config.attention)
        qkv_bias = config.bias if config.qkv_bias is None else config.qkv_bias
        self.mixer: Mixer = build_mixer(
            attention,
            config.num_heads,
            config.head_dim,
            is_causal=config.is_causal,
            num_kv_heads=config.num_kv_heads,
            causal_block=config.causal_block,
            bias=qkv_bias,
        )
        if qkv_bias != config.bias:
            self.mixer.out = nn.Linear(config.embed_dim, config.embed_dim, bias=config.bias)
        self.norm1 = build_norm(config)
        self.norm2 = build_norm(config)
        self.expand = nn.Linear(config.embed_dim, config.ffn_dim, bias=config.bias)
        self.gate: nn.Linear | None = None
        is_gated = config.ffn == "swiglu"
        if is_gated:
            self.gate = nn.Linear(config.embed_dim, config.ffn_dim, bias=config.bias)
        self.contract = nn.Linear(config.ffn_dim, config.embed_dim, bias=config.bias)
        self.activation = ACTIVATIONS["silu" if is_gated else config.ffn]
        self.norm_first = config.norm_first
        self.dropout = config.dropout
        self.rotary_base = config.rotary_base if config.rotary else None
        self.rotary_scaling = config.rotary_scaling
        self.cross: LinearAttention | None = None
        if config.cross_attention:
            self.cross = _cross_attention(config)
            self.norm_cross = build_norm(config)
        self._initialize(config)

    def forward(
        self,
        x: Tensor,
        key_lengths: Tensor | None = None,
        memory: LinearAttentionState | None = None,
        attn_mask: Tensor | None = None,
        rotation: Rotation | None = None,
        causal_block: int | None = None,
    ) -> Tensor:
        """(B, N, E) -> (B, N, E); the only method with dropout, in training mode."""
        inputs = self._attention_input(x)
        attended = self.mixer(inputs, key_lengths, attn_mask, rotation, causal_block)
        return self._output(x, attended, memory, self.dropout if self.training else 0.0)

    def prefill(
        self,
        x: Tensor,
        packing: Packing | None,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
        memory: LinearAttentionState | None = None,
        last_only: bool = False,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, LayerState]:
        """As `forward` without dropout, from a state or None; also the state after each row.

        Args:
            x: whole rows (B, N, E), or with a packing packed ones (1, T, E).
            last_only: return only the output at each row's last position, (B, E).
        """
        inputs = self._attention_input(x)
        attended, state = self.mixer.prefill(
            inputs, packing, max_length, state, cursor, last_only, rotation
        )
        if last_only:
            return self._output(last_of(x, packing), attended, memory), state
        return self._output(x, attended, memory, packing=packing), state

    def step(
        self,
        x: Tensor,
        state: LayerState,
        cursor: Cursor,
        memory: LinearAttentionState | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, LayerState]:
        """(B, E) -> (B, E), and the next state."""
        attended, state = self.mixer.step(self._attention_input(x), state, cursor, rotation)
        return self._output(x, attended, memory), state

    def read_block(
        self, x: Tensor, state: tuple[Tensor, Tensor], key_lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(B, N, E) -> (B, N, E), and the next state; for attention that a recognizer streams with.

        The positions are one block of any size, which sees itself and what the state knows.
        """
        mixer = cast(LinearMixer | SoftmaxMixer, self.mixer)
        projected = mixer.project(self._attention_input(x))
        heads, state = mixer.attend_block(projected, state, key_lengths)
        return self._output(x, mixer.join(heads), None), state

    def describe(self) -> DecoderLayer:
        """The layer for a backend that compiles it; see `Transformer.describe`."""
        description.require(self, Block)
        if self.cross is not None:
            advice = "decode eagerly"
            raise CannotCompile(expected("a compiled block", "no cross-attention", "one", advice))
        if self.activation not in ACTIVATIONS.values():
            wanted = f"that of one of {', '.join(map(repr, ACTIVATIONS))}"
            raise CannotCompile(expected("the activation of a block", wanted, self.activation))
        qkv, out = self.mixer.describe()
        mixer = cast(LinearMixer, self.mixer)
        decay, maps = mixer.decay, mixer.describe_maps()
        logits = None if decay is None else decay.factor_logits()
        weight = None if decay is None else decay.weight
        return DecoderLayer(
            qkv,
            out,
            expand=description.affine(self.expand),
            contract=description.affine(self.contract),
            norm1=description.norm(self.norm1),
            norm2=description.norm(self.norm2),
            gate=None if self.gate is None else description.affine(self.gate),
            decay_logits=description.optional(logits, "a decay"),
            decay_weight=description.optional(weight, "a decay's weight"),
            log_gamma=description.optional(mixer.log_gamma, "a window's log_gamma"),
            query_map=description.optional(maps[0], "a map"),
            key_map=description.optional(maps[1], "a map"),
        )

    def settings(self) -> dict[str, Any]:
        """The settings for a `DecoderDescription`; only for a block that `describe` accepts."""
        mixer = cast(LinearMixer, self.mixer)
        names = (name for name, x in ACTIVATIONS.items() if x is self.activation)
        return {
            "num_heads": mixer.num_heads,
            "num_kv_heads": mixer.num_kv_heads,
            "head_dim": mixer.head_dim,
            "feature_map": mixer.feature_map.pointwise or "hedgehog",
            "eps": mixer.eps,
            "activation": next(names),
            "norm_first": self.norm_first,
            "rotary_frequencies": self._frequencies(),
            "window_size": mixer.window_size,
        }

    def _frequencies(self) -> tuple[float, ...] | None:
        if self.rotary_base is None:
            return None
        arguments = self.mixer.head_dim, self.rotary_base, self.rotary_scaling
        return tuple(frequencies_of(*arguments, torch.device("cpu")).tolist())

    def _initialize(self, config: TransformerConfig) -> None:
        compared = self.mixer.qkv.weight[: self.mixer.num_compared]
        spread_queries_and_keys(compared, self.mixer.spread)
        if self.norm_first:
            last = [self.mixer.out, self.contract]
            last += [] if self.cross is None else [self.cross.out]
            bound_residual_stream(last, len(last) * config.num_layers)

    def _attention_input(self, x: Tensor) -> Tensor:
        return self.norm1(x) if self.norm_first else x

    def _output(
        self,
        x: Tensor,
        attended: Tensor,
        memory: LinearAttentionState | None,
        dropout: float = 0.0,
        packing: Packing | None = None,
    ) -> Tensor:
        x = x + _dropout(attended, dropout)
        if not self.norm_first:
            x = self.norm1(x)
        if self.cross is not None:
            sums = cast(LinearAttentionState, memory)
            x = self._attend_across(self.cross, x, sums, dropout, packing)
        if self.norm_first:
            return x + _dropout(self._ffn(self.norm2(x)), dropout)
        return cast(Tensor, self.norm2(x + _dropout(self._ffn(x), dropout)))

    def _attend_across(
        self,
        cross: LinearAttention,
        x: Tensor,
        memory: LinearAttentionState,
        dropout: float,
        packing: Packing | None,
    ) -> Tensor:
        """x (B, N, E), packed (1, T, E) or (B, E), plus what cross-attention reads."""
        inputs = self.norm_cross(x) if self.norm_first else x
        if packing is not None:
            read = packing.pack(cross.read(packing.unpack(inputs), memory))
        else:
            whole = inputs.unsqueeze(1) if x.ndim == 2 else inputs
            read = cross.read(whole, memory).view_as(x)
        x = x + _dropout(read, dropout)
        return x if self.norm_first else cast(Tensor, self.norm_cross(x))

    def _ffn(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return cast(Tensor, self.contract(self.activation(self.expand(x))))
        return cast(Tensor, self.contract(self.activation(self.gate(x)) * self.expand(x)))


def build_norm(config: TransformerConfig) -> nn.LayerNorm | nn.RMSNorm:
    """A norm of the configured kind over E numbers."""
    if config.norm == "rms":
        eps = RMS_EPS if config.norm_eps is None else config.norm_eps
        return nn.RMSNorm(config.embed_dim, eps=eps)
    eps = LAYER_EPS if config.norm_eps is None else config.norm_eps
    return nn.LayerNorm(config.embed_dim, eps=eps, bias=config.bias)


def _cross_attention(config: TransformerConfig) -> LinearAttention:
    attention = cast(Linear, config.attention)
    return LinearAttention(
        config.embed_dim,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        feature_map=attention.feature_map,
        feature_map_options=dict(attention.feature_map_options),
        bias=config.bias,
        eps=attention.eps,
    )


def _dropout(x: Tensor, probability: float) -> Tensor:
    return F.dropout(x, probability) if probability else x
