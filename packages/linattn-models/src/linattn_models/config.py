"""The shape of a transformer, as a value that can be compared, hashed and written to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from linattn_core import feature_map_names
from linattn_models.validation import at_least, exact_keys, hash_buckets, in_range, one_of

ATTENTIONS = ("linear", "softmax", "lsh")
ACTIVATIONS = ("gelu", "relu")
NORMS = ("pre", "post")

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that fixes the layers of a `Transformer`; refuses what cannot be built.

    Attributes:
        num_layers: blocks of attention and feed-forward network.
        num_heads: H, heads of attention in each block.
        head_dim: D = M, dimension of a head; the embedding is E = num_heads * head_dim.
        ffn_dim: hidden dimension of the feed-forward network.
        attention: "linear" (the paper), "softmax" or "lsh" (its rivals).
        is_causal: whether position i sees only positions up to i; only then can a model step.
        feature_map: phi of linear attention, a name that `linattn_core.feature_map_names` lists.
        feature_map_options: that map's own options, a mapping or pairs, such as
            {"num_features": 64}; kept as sorted pairs.
        activation: between the two layers of the feed-forward network, "gelu" or "relu" (which
            saves a decoding step of one sequence some five per cent).
        norm: "pre" normalizes what enters attention and the feed-forward network, "post" what
            leaves each residual sum (the paper's layout); both end with one more LayerNorm.
        dropout: probability at which `forward` drops what each sub-layer adds, in training mode.
        eps: added to the denominator of linear attention.
        lsh_rounds, lsh_buckets, lsh_chunk: of LSH attention, see `lsh_attention`: rounds of hashing
            (the X of lsh-X), buckets in each, an even number, and positions in a chunk.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    attention: str = "linear"
    is_causal: bool = True
    feature_map: str = "elu"
    feature_map_options: Mapping[str, Any] | Options = ()
    activation: str = "gelu"
    norm: str = "pre"
    dropout: float = 0.0
    eps: float = 1e-6
    lsh_rounds: int = 4
    lsh_buckets: int = 64
    lsh_chunk: int = 32

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "head_dim", "ffn_dim"):
            at_least(name, getattr(self, name), 1)
        if str(self.attention).startswith("lsh-"):
            raise ValueError(
                f"attention must be one of {', '.join(map(repr, ATTENTIONS))} and is "
                f"{self.attention!r}; give attention='lsh' and lsh_rounds, or use with_attention."
            )
        one_of("attention", self.attention, ATTENTIONS)
        one_of("feature_map", self.feature_map, feature_map_names())
        one_of("activation", self.activation, ACTIVATIONS)
        one_of("norm", self.norm, NORMS)
        if not isinstance(self.is_causal, bool):
            raise ValueError(f"is_causal must be true or false and is {self.is_causal!r}.")
        in_range("dropout", self.dropout, 0.0, 1.0)
        in_range("eps", self.eps, 0.0, math.inf)
        for name in ("lsh_rounds", "lsh_chunk"):
            at_least(name, getattr(self, name), 1)
        hash_buckets("lsh_buckets", self.lsh_buckets)
        object.__setattr__(self, "feature_map_options", _sorted_pairs(self.feature_map_options))

    @property
    def embed_dim(self) -> int:
        """E, the width of the residual stream."""
        return self.num_heads * self.head_dim

    @property
    def attention_name(self) -> str:
        """The attention by the name that tables give it: "lsh-4" is LSH with four rounds."""
        return f"lsh-{self.lsh_rounds}" if self.attention == "lsh" else self.attention

    def with_attention(self, name: str) -> TransformerConfig:
        """The same layers with another attention.

        Args:
            name: "linear", "softmax", "lsh", or "lsh-X" for X rounds of hashing.

        Raises:
            ValueError: another name.
        """
        kind, _, rounds = name.partition("-")
        if kind == "lsh" and rounds.isdecimal():
            return replace(self, attention=kind, lsh_rounds=int(rounds))
        if kind == "lsh" and name != kind:
            raise ValueError(
                f"attention {name!r} is unknown; 'lsh-X' is LSH with X rounds of hashing, a number."
            )
        one_of("attention", name, ATTENTIONS)
        return replace(self, attention=name)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `from_dict` takes them back."""
        return {**asdict(self), "feature_map_options": dict(self.feature_map_options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            ValueError: a key that is unknown or missing, or a value out of range.
        """
        required = [field.name for field in fields(cls) if field.default is MISSING]
        optional = [field.name for field in fields(cls) if field.default is not MISSING]
        return cls(**exact_keys("A transformer configuration", values, required, optional))

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> TransformerConfig:
        """The configuration that `to_json` wrote.

        Raises:
            ValueError: text that is not JSON, or as for `from_dict`.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"A transformer configuration must be JSON: {error}.") from None
        return cls.from_dict(values)


def _sorted_pairs(options: object) -> Options:
    """Options in one hashable form, whatever their order and container."""
    try:
        pairs = dict(options)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(
            f"feature_map_options must be a mapping or pairs of name and value and is {options!r}."
        ) from None
    for name, value in pairs.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            raise ValueError(
                "feature_map_options must map names to numbers, strings or booleans and has "
                f"{name!r}: {value!r}."
            )
    return tuple(sorted(pairs.items()))
