"""The kinds of attention, their configurations, and linear attention as a layer of its own."""

from __future__ import annotations

from typing import Any

from linattn_models.attention.base import Mixer
from linattn_models.attention.config import Attention, Linear, Lsh, Softmax, attention_config
from linattn_models.attention.encoder import EncoderAttention
from linattn_models.attention.layer import LinearAttention
from linattn_models.attention.linear import LinearMixer
from linattn_models.attention.lsh import LshMixer, draw_rotations, lsh_attention
from linattn_models.attention.softmax import SoftmaxMixer

_MIXERS: dict[type[Attention], type[Mixer]] = {
    Linear: LinearMixer,
    Softmax: SoftmaxMixer,
    Lsh: LshMixer,
}


def build_mixer(attention: Attention, num_heads: int, head_dim: int, **settings: Any) -> Mixer:
    """The attention layer of a configuration; the settings are those of `Mixer`."""
    kind: Any = _MIXERS[type(attention)]
    mixer: Mixer = kind(attention, num_heads, head_dim, **settings)
    return mixer


__all__ = [
    "Attention",
    "EncoderAttention",
    "Linear",
    "LinearAttention",
    "LinearMixer",
    "Lsh",
    "LshMixer",
    "Mixer",
    "Softmax",
    "SoftmaxMixer",
    "attention_config",
    "build_mixer",
    "draw_rotations",
    "lsh_attention",
]
