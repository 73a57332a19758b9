"""Feature maps by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from linattn_core.errors import expected, near, quote
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.elementwise import Elementwise
from linattn_core.feature_maps.hedgehog import Hedgehog
from linattn_core.feature_maps.polynomial import Polynomial, Taylor
from linattn_core.feature_maps.random_features import Favor, RandomFourier
from linattn_core.torch_private import constant_in_graphs, outside_every_mode

# A factory takes head_dim and its own options by keyword.
Factory = Callable[..., FeatureMap]


def _without_head_dim(make: Callable[[], FeatureMap], head_dim: int) -> FeatureMap:
    return make()


_factories: dict[str, Factory] = {
    "elu": partial(_without_head_dim, partial(Elementwise, "elu")),
    "relu": partial(_without_head_dim, partial(Elementwise, "relu")),
    "identity": partial(_without_head_dim, partial(Elementwise, "identity")),
    "polynomial": partial(_without_head_dim, Polynomial),
    "taylor": partial(_without_head_dim, Taylor),
    "favor": Favor,
    "rff": RandomFourier,
    "hedgehog": Hedgehog,
}


def feature_map_names() -> tuple[str, ...]:
    """The names that `get_feature_map` knows, registered ones included."""
    return tuple(_factories)


def register_feature_map(name: str, factory: Factory) -> None:
    """Makes `factory(head_dim, **options) -> FeatureMap` available under `name`.

    Raises:
        ValueError: the name is taken.
        TypeError: a name that is not a str, or a factory that cannot be called.
    """
    if not isinstance(name, str):
        raise TypeError(expected("name", "a str", quote(name)))
    if not callable(factory):
        raise TypeError(expected("factory", "a function or a class", quote(factory)))
    if name in _factories:
        raise ValueError(
            expected("name", "one that no feature map has", quote(name), "choose another")
        )
    _factories[name] = factory


def get_feature_map(feature_map: str | FeatureMap, head_dim: int, **options: Any) -> FeatureMap:
    """The feature map of that name for head dim D, or the map itself.

    Args:
        feature_map: "elu", "relu", "identity", "polynomial", "taylor", "favor", "rff",
            "hedgehog", a registered name, or a `FeatureMap`.
        head_dim: D, the last dimension of queries and keys.
        **options: of that map: `num_features` and `generator` for the random ones, `lengthscale`
            for "rff", `num_features`, `num_heads` and `num_kv_heads` for "hedgehog".

    Raises:
        ValueError: an unknown name (with the near ones), or an option that is out of range.
        TypeError: an option that the map does not have, or neither a name nor a map.
    """
    if isinstance(feature_map, FeatureMap):
        if options:
            what = f"options of a built {type(feature_map).__name__}"
            raise TypeError(expected(what, "none", sorted(options), "pass them where it is built"))
        return feature_map
    if not isinstance(feature_map, str):
        kind = type(feature_map).__name__
        raise TypeError(
            expected("feature_map", "a name or a FeatureMap", f"a value of type {kind}")
        )
    factory = _factory(feature_map)
    try:
        inspect.signature(factory).bind(head_dim, **options)
    except TypeError as error:
        raise TypeError(
            expected(
                f"feature map {feature_map!r}",
                f"arguments {inspect.signature(factory)}",
                f"head_dim={head_dim} and options {options}",
                str(error),
            )
        ) from None
    mapping = factory(head_dim, **options)
    if not isinstance(mapping, FeatureMap):
        what = f"the factory of feature map {feature_map!r}"
        raise TypeError(expected(what, "a FeatureMap", f"a value of type {type(mapping).__name__}"))
    return mapping


def _factory(name: str) -> Factory:
    if name not in _factories:
        advice = near(name, feature_map_names())
        raise ValueError(expected("feature_map", "a registered name", quote(name), advice))
    return _factories[name]


_shared: dict[tuple[str, int], FeatureMap] = {}


# Runs while a graph is traced, without becoming part of the graph.
@constant_in_graphs
def _make_shared(name: str, head_dim: int) -> bool:
    if (name, head_dim) not in _shared:
        _shared[name, head_dim] = outside_every_mode(partial(_seeded_and_fixed, name, head_dim))
    return True


def _seeded_and_fixed(name: str, head_dim: int) -> FeatureMap:
    seeded = "generator" in inspect.signature(_factory(name)).parameters
    options = {"generator": torch.Generator().manual_seed(0)} if seeded else {}
    mapping = get_feature_map(name, head_dim, **options)
    if any(True for _ in mapping.parameters()):
        advice = (
            f"keep get_feature_map({name!r}, {head_dim}) as an attribute of the model, train it "
            "with the model, and pass it as feature_map"
        )
        wanted = "a map with weights of its own, as they are learned"
        raise ValueError(expected("feature_map", wanted, f"the name {name!r}", advice))
    # The same numbers whatever torch's default dtype is when they are drawn.
    return mapping.float() if seeded else mapping


def shared_feature_map(feature_map: str | FeatureMap, head_dim: int) -> FeatureMap:
    """The map of a call: a `FeatureMap` itself, or the one that all calls with a name and D share.

    Random maps that are given by name are drawn with seed 0. So a call with a name is a pure
    function: it has the same features in every call, for a whole sequence and for a step.
    """
    if not isinstance(feature_map, str):
        return get_feature_map(feature_map, head_dim)
    # With dynamic shapes, D is a symbol while a graph is traced; the length of a range is an int.
    head_dim = len(range(head_dim))
    _make_shared(feature_map, head_dim)
    return _shared[feature_map, head_dim]
