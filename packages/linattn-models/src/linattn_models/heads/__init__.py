"""Output heads: the distributions of the next token that a model can predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import exact_keys, one_of
from linattn_models.heads.base import Head
from linattn_models.heads.categorical import Categorical
from linattn_models.heads.logistics import MixtureOfLogistics

_HEADS: dict[str, type[Categorical] | type[MixtureOfLogistics]] = {
    head.kind: head for head in (Categorical, MixtureOfLogistics)
}


def head_from_dict(values: object) -> Head:
    """The head that `to_dict` wrote."""
    if not isinstance(values, Mapping) or "kind" not in values:
        raise ValueError(expected("a head", "a mapping with a 'kind'", quote(values)))
    one_of("head", values["kind"], _HEADS)
    cls = _HEADS[values["kind"]]
    names = [field.name for field in fields(cls)]
    options = exact_keys(f"The configuration of head {cls.kind!r}", values, ["kind", *names])
    return cls(**{name: options[name] for name in names})


__all__ = ["Categorical", "Head", "MixtureOfLogistics", "head_from_dict"]
