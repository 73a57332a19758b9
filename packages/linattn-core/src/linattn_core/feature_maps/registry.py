"""Feature maps by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.elementwise import Elementwise
from linattn_core.feature_maps.hedgehog import Hedgehog
from linattn_core.feature_maps.polynomial import Polynomial, Taylor
from linattn_core.feature_maps.random_features import Favor, RandomFourier

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
    """
    if name in _factories:
        raise ValueError(f"The feature map name {name!r} is taken; choose another.")
    _factories[name] = factory


def near_names(name: str, known: tuple[str, ...]) -> str:
    """The end of a sentence about an unknown name: the nearest known ones, or all of them."""
    near = difflib.get_close_matches(name, known, n=2)
    if near:
        return "did you mean " + " or ".join(repr(x) for x in near) + "?"
    return "known are " + ", ".join(repr(x) for x in known) + "."


def get_feature_map(feature_map: str | FeatureMap, head_dim: int, **options: Any) -> FeatureMap:
    """The feature map of that name for head dim D, or the given map itself.

    Args:
        feature_map: "elu", "relu", "identity", "polynomial", "taylor", "favor", "rff",
            "hedgehog", a registered name, or a `FeatureMap`.
        head_dim: D, the last dimension of queries and keys.
        **options: of that map: `num_features` and `generator` for the random ones, `lengthscale`
            for "rff", `num_features` and `num_heads` for "hedgehog".

    Raises:
        ValueError: an unknown name (with the near ones), or an option that is out of range.
        TypeError: an option that the map does not have, or neither a name nor a map.
    """
    if isinstance(feature_map, FeatureMap):
        if options:
            raise TypeError(
                f"Options {sorted(options)} were given with a ready {type(feature_map).__name__}; "
                "pass them where it is built."
            )
        return feature_map
    if not isinstance(feature_map, str):
        raise TypeError(
            "feature_map was expected to be a name or a FeatureMap and is a "
            f"{type(feature_map).__name__}."
        )
    factory = _factory(feature_map)
    try:
        inspect.signature(factory).bind(head_dim, **options)
    except TypeError as error:
        raise TypeError(
            f"Feature map {feature_map!r} is built as {feature_map}{inspect.signature(factory)} "
            f"and was asked for with head_dim={head_dim} and options {options}: {error}."
        ) from None
    made = factory(head_dim, **options)
    if not isinstance(made, FeatureMap):
        raise TypeError(
            f"The factory of feature map {feature_map!r} was expected to return a FeatureMap and "
            f"returned a {type(made).__name__}."
        )
    return made


def _factory(name: str) -> Factory:
    if name not in _factories:
        raise ValueError(f"Unknown feature map {name!r}; {near_names(name, feature_map_names())}")
    return _factories[name]


_shared: dict[tuple[str, int], FeatureMap] = {}


# Runs while a graph is traced, and leaves no trace in it.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _make_shared(name: str, head_dim: int) -> bool:
    if (name, head_dim) not in _shared:
        # On a thread of its own, for the map outlives whatever mode the caller is in: inference,
        # another default device, the fake tensors of torch.export, vmap. A thread begins without.
        with ThreadPoolExecutor(1) as thread:
            _shared[name, head_dim] = thread.submit(_seeded_and_fixed, name, head_dim).result()
    return True


def _seeded_and_fixed(name: str, head_dim: int) -> FeatureMap:
    seeded = "generator" in inspect.signature(_factory(name)).parameters
    options = {"generator": torch.Generator().manual_seed(0)} if seeded else {}
    return get_feature_map(name, head_dim, **options).requires_grad_(False)


def shared_feature_map(name: str, head_dim: int) -> FeatureMap:
    """The one map that calls by name share: random maps drawn with seed 0, learned ones untrained.

    Sharing makes a call by name a pure function: the same features in every call, whole sequence
    or step by step.
    """
    # With dynamic shapes D is a symbol while a graph is traced; a range has to know its length.
    head_dim = len(range(head_dim))
    _make_shared(name, head_dim)
    return _shared[name, head_dim]
