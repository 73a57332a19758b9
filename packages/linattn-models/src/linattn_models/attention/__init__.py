"""The attentions that a transformer is built with, and their configurations."""

from __future__ import annotations

from linattn_models.attention.base import Mixer
from linattn_models.attention.config import Attention, Linear, Lsh, Softmax, attention_config
from linattn_models.attention.linear import LinearMixer
from linattn_models.attention.lsh import LshMixer, draw_rotations, lsh_attention
from linattn_models.attention.softmax import SoftmaxMixer

_MIXERS: dict[type[Attention], type[Mixer]] = {
    Linear: LinearMixer,
    Softmax: SoftmaxMixer,
    Lsh: LshMixer,
}


def build_mixer(attention: Attention, num_heads: int, head_dim: int, is_causal: bool) -> Mixer:
    """The attention layer of a configuration."""
    return _MIXERS[type(attention)](attention, num_heads, head_dim, is_causal)


__all__ = [
    "Attention",
    "Linear",
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
