"""The names of registered attention: a config saves them, which transformers alone leaves out."""

from __future__ import annotations

from functools import wraps
from typing import Any

from transformers import PreTrainedConfig

from linattn_core import FeatureMap
from linattn_core.errors import expected, quote
from linattn_models.huggingface.decays import Decay
from linattn_models.weights.model_files import compute_digest

_FIELD = "linattn_attention"

registered: dict[str, dict[str, Any]] = {}
"""What a config saves of each name, beside the name; empty for the name of converted layers."""


def describe(feature_map: str | FeatureMap, eps: float, decay: Decay | None) -> dict[str, Any]:
    """The settings of `register`, as a config saves them."""
    settings = {"feature_map": _describe_map(feature_map), "eps": float(eps)}
    return settings if decay is None else {**settings, "decay": decay}


def _describe_map(feature_map: str | FeatureMap) -> str:
    """A name; of a module its class, what it says of itself, and a digest of its numbers."""
    if isinstance(feature_map, str):
        return feature_map
    if feature_map.pointwise is not None:
        return feature_map.pointwise
    said = " ".join(feature_map.extra_repr().split())
    if tensors := feature_map.state_dict():
        said = f"{said}, {compute_digest(tensors)[:8]}".removeprefix(", ")
    return f"{type(feature_map).__name__}({said})"


def remember(name: str, settings: dict[str, Any]) -> None:
    """From now on a config whose attention has this name saves the name and the settings."""
    registered[name] = settings
    if not hasattr(PreTrainedConfig.to_dict, _FIELD):
        PreTrainedConfig.to_dict = _with_names(PreTrainedConfig.to_dict)


def refuse_other_settings(config: PreTrainedConfig) -> None:
    """Refuses a model that was saved with other settings than its name has now."""
    name = config._attn_implementation
    saved, here = getattr(config, _FIELD, {}).get(name), registered.get(name)
    if saved is not None and here is not None and saved != here:
        wanted, got = (", ".join(f"{k}={quote(v)}" for k, v in x.items()) for x in (saved, here))
        advice = "register what the model was saved with, or load it with another name"
        raise ValueError(expected(name, wanted, got, advice))


def _with_names(written: Any) -> Any:
    """`PreTrainedConfig.to_dict`, and the name of a registered attention."""

    @wraps(written)
    def to_dict(config: PreTrainedConfig) -> dict[str, Any]:
        content: dict[str, Any] = written(config)
        name = config._attn_implementation
        if (names := _registered_names(config)) is not None:
            content["attn_implementation"] = names  # an argument of every config
        if settings := registered.get(name):
            # A loaded config keeps what it was saved with, under the name that it was saved with.
            saved = content.get(_FIELD, {}).get(name, settings)
            content[_FIELD] = {name: saved}
        else:
            content.pop(_FIELD, None)
        return content

    setattr(to_dict, _FIELD, True)
    return to_dict


def _registered_names(config: PreTrainedConfig) -> Any:
    """The registered name of a model's attention; where its parts differ, a dict of them.

    A part's own config is not enough: some models replace what it says by that of the whole.
    """
    name = config._attn_implementation
    own = name if name in registered else None
    parts = {
        key: _registered_names(part)
        for key in config.sub_configs
        if (part := getattr(config, key, None)) is not None
    }
    return own if all(part == own for part in parts.values()) else {"": own, **parts}
