"""Linear attention in plain PyTorch: the operator, its feature maps, its state, its backends."""

from linattn_core import reference
from linattn_core.choice import use_backend
from linattn_core.feature_maps import (
    FeatureMap,
    feature_map_names,
    get_feature_map,
    register_feature_map,
)
from linattn_core.functional import explain, linear_attention, linear_attention_step
from linattn_core.registry import backends, empty_cache
from linattn_core.state import LinearAttentionState, TensorTuple
from linattn_core.summation import linear_attention_state

__version__ = "0.1.0"

__all__ = [
    "FeatureMap",
    "LinearAttentionState",
    "TensorTuple",
    "backends",
    "empty_cache",
    "explain",
    "feature_map_names",
    "get_feature_map",
    "linear_attention",
    "linear_attention_state",
    "linear_attention_step",
    "reference",
    "register_feature_map",
    "use_backend",
]
