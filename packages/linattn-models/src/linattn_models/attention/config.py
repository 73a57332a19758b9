"""The configurations of the kinds of attention: one frozen dataclass each, with a short form.

`linattn_models.attention.registry` adds those of other packages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from linattn_core import feature_map_names
from linattn_core.errors import LONGEST, expected, near, quote
from linattn_models.attention.decay import DECAYS
from linattn_models.basics.validation import (
    fields_at_least,
    from_fields,
    hash_buckets,
    in_range,
    one_of,
)

# What an attention may take of a `TransformerConfig`.
OPTIONS = frozenset({"is_causal=False", "num_kv_heads", "causal_block", "rotary"})

Options = tuple[tuple[str, Any], ...]

# A softmax over so many keys is no longer a window, and each state has room for all of them.
LONGEST_WINDOW = 1 << 20


class Attention:
    """The base of all configurations, frozen dataclasses of the fields that layers are built from.

    Fields hold what JSON has, and the dataclass checks them.

    Attributes:
        kind: the name, by which a saved model names its attention.
        takes: the options of a `TransformerConfig` that it takes, of "is_causal=False",
            "num_kv_heads", "causal_block" and "rotary"; a configuration with another is refused.
        has_cache: whether its state is a `KeyValueCache`, with room for so many positions.
    """

    kind: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset()
    has_cache: ClassVar[bool] = False

    @property
    def cannot_step(self) -> str:
        """The reason why this attention cannot step; empty where it can."""
        return ""

    def __str__(self) -> str:
        return self.kind

    def to_dict(self) -> dict[str, Any]:
        """The kind and the fields as JSON values; `attention_config` reads them."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Linear(Attention):
    """Linear attention, the paper's: phi(q)^T S / (phi(q)^T z + eps). Short form "linear".

    Attributes:
        feature_map: phi, a name that `linattn_core.feature_map_names` lists.
        eps: added to the denominator; not used beside a window, whose denominators are never 0.
        feature_map_options: the map's own options, a mapping or pairs, such as
            {"num_features": 64}; stored as sorted pairs.
        decay: None for no decay; "fixed": each head has its own constant factor, as in RetNet;
            "learned": the same factors at first, then trained; "gated": a factor of each position
            and head, sigmoid(b + W x) of the layer's input x, which starts near the same factors.
            Causal attention only. With a `causal_block`, the keys before a block count less, by the
            product of the factors of the block's positions; within a block all count alike.
        decay_range: the least and the greatest factor of a fixed or learned decay, above 0 and at
            most 1; heads start evenly spread over them. None for RetNet's factors, without bounds.
        window_size: w, at most 2^20; 0 for no window. With one, each position reads the last w
            keys, its own included, by softmax, and those before them by linear attention:

                O_i = (sum_W exp(Q_i^T K_j) V_j + g sum_L phi(Q_i)^T phi(K_j) V_j)
                      / (sum_W exp(Q_i^T K_j) + g sum_L phi(Q_i)^T phi(K_j))

            for queries and keys divided by D^(1/4), and g a trained number of each head over the
            number of features. A state has the last w keys and values beside S and z, and does not
            grow. Keys that a mask leaves out take places in the window. Causal attention only. A
            decay acts on the sums alone: a key that leaves the window enters them with the factor
            of its own position.
    """

    kind = "linear"
    takes = OPTIONS

    feature_map: str = "elu"
    eps: float = 1e-6
    feature_map_options: Mapping[str, Any] | Options = ()
    decay: str | None = None
    window_size: int = 0
    decay_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        one_of("feature_map", self.feature_map, feature_map_names())
        in_range("eps", self.eps, 0.0, math.inf)
        if self.decay is not None:
            one_of("decay", self.decay, DECAYS)
        fields_at_least(self, 0, "window_size")
        _check_size("window_size", self.window_size)
        if self.decay_range is not None:
            object.__setattr__(self, "decay_range", _read_factors(self.decay_range, self.decay))
        object.__setattr__(self, "feature_map_options", _sorted_pairs(self.feature_map_options))

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "feature_map_options": dict(self.feature_map_options)}


@dataclass(frozen=True)
class Softmax(Attention):
    """Softmax attention: softmax(q^T K / sqrt(D)) V. Short form "softmax".

    Attributes:
        past_size: w; 0 for all. Otherwise a position reads its block of `causal_block` positions
            and the w keys before it; before the first position come w keys and values of 0. Causal
            attention only, of a recognizer that streams: it neither prefills nor steps.
    """

    kind = "softmax"
    takes = OPTIONS
    has_cache = True

    past_size: int = 0

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "past_size")
        _check_size("past_size", self.past_size)

    @property
    def cannot_step(self) -> str:
        if not self.past_size:
            return ""
        wanted = "0 in a model that steps or prefills"
        advice = "call generate(method='rerun'), or use linear attention"
        return expected("past_size", wanted, self.past_size, advice)


@dataclass(frozen=True)
class Lsh(Attention):
    """LSH attention, Reformer's; see `lsh_attention`. Short form "lsh-4" with 4 rounds.

    Attributes:
        rounds: rounds of hashing.
        buckets: buckets in each round, 1 or an even number.
        chunk: positions in a chunk.
    """

    kind = "lsh"
    takes = frozenset({"is_causal=False"})

    rounds: int = 4
    buckets: int = 64
    chunk: int = 32

    def __post_init__(self) -> None:
        fields_at_least(self, 1, "rounds", "chunk")
        object.__setattr__(self, "buckets", hash_buckets(self.buckets))
        _check_size("rounds * buckets", self.rounds * self.buckets)
        _check_size("chunk", self.chunk)

    @property
    def cannot_step(self) -> str:
        return (
            "LSH attention cannot step or prefill: a new position sorts among those before it and "
            "shifts the chunks of all, so that no state stays valid; call "
            "generate(method='rerun'), or use linear or softmax attention."
        )

    def __str__(self) -> str:
        return f"{self.kind}-{self.rounds}"


# Filled by `register_attention`.
KINDS: dict[str, type[Attention]] = {}


def attention_config(value: object) -> Attention:
    """The configuration for a short form or for the mapping of `to_dict`, or `value` itself.

    Args:
        value: a configuration; "linear", "softmax", "lsh", or "lsh-X" with X rounds of hashing; or
            a mapping with the key "kind" and the fields.
    """
    if isinstance(value, Attention):
        if type(value) is not KINDS.get(value.kind):
            raise _unregistered(type(value).__name__)
        return value
    if isinstance(value, Mapping):
        fields = dict(value)
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in KINDS:
            raise _unregistered(quote(kind))
        return from_fields(KINDS[kind], f"the configuration of attention {kind!r}", fields)
    if isinstance(value, str) and value in KINDS:
        return from_fields(KINDS[value], f"the configuration of attention {value!r}", {})
    kind, _, rounds = str(value).partition("-")
    if kind == Lsh.kind and rounds.isascii() and rounds.isdecimal() and len(rounds) < 10:
        return Lsh(rounds=int(rounds))
    wanted = "'linear', 'softmax', 'lsh-X' with X rounds or a registered name"
    advice = near(str(value)[:LONGEST], [*KINDS, "lsh-4"])
    raise ValueError(expected("attention", wanted, quote(value), advice))


def _unregistered(got: str) -> ValueError:
    wanted = f"one of {', '.join(map(repr, KINDS))}"
    advice = "import the module that passes it to linattn_models.register_attention"
    return ValueError(expected("the kind of attention", wanted, got, advice))


def _check_size(name: str, size: int) -> None:
    """Refuses what a file may hold and no memory does."""
    if size > LONGEST_WINDOW:
        raise ValueError(expected(name, f"at most {LONGEST_WINDOW:,}", size))


def _read_factors(bounds: object, decay: str | None) -> tuple[float, float]:
    """The bounds of a decay's factors; refuses others, and bounds of no decay."""
    numbers = tuple(bounds) if isinstance(bounds, (list, tuple)) else ()
    real = len(numbers) == 2 and all(isinstance(x, (int, float)) for x in numbers)
    if decay not in ("fixed", "learned") or not real or not 0 < numbers[0] < numbers[1] <= 1:
        wanted = "two factors above 0 and at most 1, the smaller first, of a fixed or learned decay"
        raise ValueError(expected("decay_range", wanted, f"{quote(bounds)} and decay {decay}"))
    return float(numbers[0]), float(numbers[1])


def _sorted_pairs(options: object) -> Options:
    """Options in one hashable form, whatever their order and container."""
    wanted = "a mapping or pairs of names and numbers, strings or booleans"
    try:
        pairs = dict(options)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(expected("feature_map_options", wanted, quote(options))) from None
    for name, value in pairs.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            pair = f"{quote(name)}: {quote(value)}"
            raise ValueError(expected("feature_map_options", wanted, pair))
    return tuple(sorted(pairs.items()))
