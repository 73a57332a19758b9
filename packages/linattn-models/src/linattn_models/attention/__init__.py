"""The kinds of attention, their configurations, and linear attention as a layer of its own."""

from __future__ import annotations

from linattn_models.attention.base import Mixer
from linattn_models.attention.config import Attention, Linear, Lsh, Softmax, attention_config
from linattn_models.attention.encoder import EncoderAttention
from linattn_models.attention.layer import LinearAttention
from linattn_models.attention.linear import LinearMixer
from linattn_models.attention.lsh import LshMixer, draw_rotations, lsh_attention
from linattn_models.attention.registry import build_mixer, register_attention
from linattn_models.attention.softmax import SoftmaxMixer

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
    "register_attention",
]
