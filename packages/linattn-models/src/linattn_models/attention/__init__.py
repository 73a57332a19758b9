"""The attentions that a transformer can be built with."""

from __future__ import annotations

from linattn_models.attention.base import Mixer
from linattn_models.attention.linear import LinearMixer
from linattn_models.attention.lsh import LshMixer
from linattn_models.attention.softmax import SoftmaxMixer
from linattn_models.config import TransformerConfig

_MIXERS: dict[str, type[Mixer]] = {
    "linear": LinearMixer,
    "softmax": SoftmaxMixer,
    "lsh": LshMixer,
}


def build_mixer(config: TransformerConfig) -> Mixer:
    """The mixer that `config.attention` names."""
    return _MIXERS[config.attention](config)


__all__ = ["LinearMixer", "LshMixer", "Mixer", "SoftmaxMixer", "build_mixer"]
