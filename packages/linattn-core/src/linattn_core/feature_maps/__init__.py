"""Feature maps: phi, which replaces the exponential of softmax (section 3.2 of the paper)."""

from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.elementwise import Elementwise
from linattn_core.feature_maps.hedgehog import Hedgehog
from linattn_core.feature_maps.polynomial import Polynomial, Taylor
from linattn_core.feature_maps.random_features import Favor, RandomFourier
from linattn_core.feature_maps.registry import (
    feature_map_names,
    get_feature_map,
    register_feature_map,
)

__all__ = [
    "Elementwise",
    "Favor",
    "FeatureMap",
    "Hedgehog",
    "Polynomial",
    "RandomFourier",
    "Taylor",
    "feature_map_names",
    "get_feature_map",
    "register_feature_map",
]
