"""The description of a model that a backend compiles: weights and settings, without modules.

Letters: B batch, N inputs, E width of the embedding, G width of the feed-forward network, H heads
of queries, H_kv heads of keys and values, D head dim, F features of a head (D, unless the map is
"hedgehog"), P parameters of the head, K choices of the head, C channels of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from linattn_core.errors import expected

WEIGHTS = ("float32", "bfloat16", "int8")
_SETTINGS = (
    "num_heads", "num_kv_heads", "head_dim", "feature_map", "eps", "activation", "norm_first",
    "num_features", "window_size", "rotary_frequencies",
)  # fmt: skip


class CannotCompile(ValueError):
    """No decoder can be compiled from the model, or none with weights of this dtype."""


@dataclass(frozen=True, eq=False)
class Affine:
    """y = x W + b: weight (inputs, outputs) of any strides, bias (outputs,) or None."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm over E numbers: weight (E,), bias (E,) or None.

    Attributes:
        centered: True for LayerNorm, False for RMSNorm, which subtracts no mean.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float
    centered: bool = True


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """One block: qkv (E, E + 2 H_kv D), out (E, E), expand (E, G), contract (G, E).

    Attributes:
        norm1, norm2: the norms before attention and feed-forward network, or after their residual
            sums; see `DecoderDescription.norm_first`.
        gate: (E, G), for contract(activation(gate(x)) * expand(x)) in place of
            contract(activation(expand(x))); None for the latter.
        decay_logits: (H_kv,), a head's state is multiplied by their sigmoid before a position is
            added; None for no decay.
        decay_weight: (H_kv, E), for the sigmoid of decay_logits + decay_weight x, with x (E,) the
            input of `qkv` at the position that is added; in all layers or in none.
        log_gamma: (H,), the logarithm of the weight of linear attention beside a window, as
            `DecoderDescription.window_size` defines it; None without a window.
        query_map, key_map: (H, D, F / 2) and (H_kv, D, F / 2), the W of the map "hedgehog",
            phi(x) = [softmax(x W), softmax(-x W)]; None for other maps.
    """

    qkv: Affine
    out: Affine
    expand: Affine
    contract: Affine
    norm1: Norm
    norm2: Norm
    gate: Affine | None = None
    decay_logits: Tensor | None = None
    decay_weight: Tensor | None = None
    log_gamma: Tensor | None = None
    query_map: Tensor | None = None
    key_map: Tensor | None = None


@dataclass(frozen=True)
class Sampler:
    """A head whose tokens the compiled step can draw itself.

    Attributes:
        kind: "categorical" (K logits) or "mixture_of_logistics" (groups of K numbers: the logits,
            C groups of means, C groups of log-scales, and for C = 3 the coefficients of green on
            red, blue on red, blue on green, before tanh).
        choices: K.
        lowest_log_scale: the minimum to which log-scales are clamped.
    """

    kind: Literal["categorical", "mixture_of_logistics"]
    choices: int
    lowest_log_scale: float = 0.0

    def parameters(self, channels: int) -> int:
        """P, the number of parameters for a token of `channels` values."""
        if self.kind == "categorical":
            return self.choices
        return self.choices * (1 + 2 * channels + (3 if channels == 3 else 0))


@dataclass(frozen=True, eq=False)
class TokenCoding:
    """How tokens become input vectors, and output vectors the parameters of the next token.

    Attributes:
        embeddings: (levels, E) for each of C channels; the vectors of a token's values are summed.
        start: (E,), the input vector at position 0; None for a model whose first token is there.
        positions: (max_length, E), added to the input vectors; None for a model whose sequences
            have no end.
        output: (E, P).
        sampler: how a compiled step draws tokens; None where it only returns the parameters.
    """

    embeddings: tuple[Tensor, ...]
    start: Tensor | None
    positions: Tensor | None
    output: Affine
    sampler: Sampler | None

    @property
    def settings(self) -> dict[str, Any]:
        """Sizes, and how tokens are drawn, by name."""
        sampler = self.sampler or Sampler("categorical", 0)
        return {
            "levels": len(self.embeddings[0]),
            "channels": len(self.embeddings),
            "max_length": 0 if self.positions is None else len(self.positions),
            "parameters": self.output.weight.shape[1],
            "head": "none" if self.sampler is None else sampler.kind,
            "choices": sampler.choices,
            "lowest_log_scale": sampler.lowest_log_scale,
        }


@dataclass(frozen=True, eq=False)
class DecoderDescription:
    """A causal transformer with linear attention; all tensors are float32.

    Attributes:
        layers, norm: the blocks, and the norm after the last one.
        num_heads, num_kv_heads, head_dim: H, H_kv and D; E = H D.
        feature_map: "elu", "relu", "identity" or "hedgehog".
        eps: added to the denominator of attention.
        activation: "gelu" (exact), "gelu_tanh" (its approximation by tanh), "relu" or "silu".
        norm_first: True for x + f(norm(x)), False for norm(x + f(x)).
        rotary_frequencies: D / 2, with rotary positions: queries and keys are rotated before the
            feature map, the pair of numbers (i, i + D / 2) by position * rotary_frequencies[i].
            None for none.
        tokens: None for a decoder of vectors (B, E) -> (B, E).
        window_size: w; 0 for none. With queries and keys divided by D^(1/4), each position reads
            the last w keys, its own included, by exp(q^T k), and those before them by
            exp(log_gamma) phi(q)^T phi(k) / D, for "hedgehog" times D / 4 of the sum of exp(q W)
            and exp(-q W); all weights are divided by their sum.
    """

    layers: tuple[DecoderLayer, ...]
    norm: Norm
    num_heads: int
    num_kv_heads: int
    head_dim: int
    feature_map: str
    eps: float
    activation: str
    norm_first: bool
    rotary_frequencies: tuple[float, ...] | None
    tokens: TokenCoding | None
    window_size: int = 0

    def __post_init__(self) -> None:
        """Refuses tensors that do not fit together, because native code reads them unchecked."""
        sizes = (self.num_heads, self.num_kv_heads, self.head_dim)
        if min(sizes) < 1 or self.num_heads % self.num_kv_heads or self.window_size < 0:
            wanted = "heads of queries that share heads of keys evenly, and no negative window"
            got = f"{sizes} and {self.window_size}"
            raise CannotCompile(expected("num_heads, num_kv_heads, head_dim", wanted, got))
        turns = self.rotary_frequencies
        if turns is not None and 2 * len(turns) != self.head_dim:
            wanted = f"one for every two of {self.head_dim} numbers of a head"
            raise CannotCompile(expected("rotary_frequencies", wanted, len(turns)))
        embed = self.num_heads * self.head_dim
        _check_norm("the last norm", self.norm, embed)
        for layer in self.layers:
            self._check_projections(layer, embed)
            self._check_attention(layer, embed)
        if self.tokens is not None:
            _check_tokens(self.tokens, embed)

    def _check_projections(self, layer: DecoderLayer, embed: int) -> None:
        """Refuses linear layers and norms of other shapes."""
        first = self.layers[0]
        qkv, hidden = embed + 2 * self.num_kv_heads * self.head_dim, first.expand.weight.shape[-1]
        _check_affine("a layer's qkv", layer.qkv, embed, qkv)
        _check_affine("a layer's out", layer.out, embed, embed)
        _check_affine("a layer's expand", layer.expand, embed, hidden)
        _check_affine("a layer's contract", layer.contract, hidden, embed)
        _check_norm("a layer's norm1", layer.norm1, embed)
        _check_norm("a layer's norm2", layer.norm2, embed)
        if (layer.gate is None) != (first.gate is None):
            wanted, advice = "one in all layers or in none", "decode eagerly"
            raise CannotCompile(expected("a gate", wanted, "some layers with one", advice))
        if layer.gate is not None:
            _check_affine("a layer's gate", layer.gate, embed, hidden)

    def _check_attention(self, layer: DecoderLayer, embed: int) -> None:
        """Refuses weights of decay, window and feature map of other shapes."""
        if layer.decay_logits is not None:
            _check_shape("a layer's decay", layer.decay_logits, (self.num_kv_heads,))
        if (layer.decay_weight is not None) != self.has_gated_decay:
            wanted, advice = "one in all layers or in none", "decode eagerly"
            raise CannotCompile(expected("a decay's weight", wanted, "some layers", advice))
        if layer.decay_weight is not None:
            _check_shape("a decay's weight", layer.decay_weight, (self.num_kv_heads, embed))
        if (layer.log_gamma is None) != (self.window_size == 0):
            wanted = "one in each layer with a window, and none without"
            got = f"window_size={self.window_size}"
            raise CannotCompile(expected("log_gamma", wanted, got, "decode eagerly"))
        if layer.log_gamma is not None:
            _check_shape("a layer's log_gamma", layer.log_gamma, (self.num_heads,))
        for heads, weight in (
            (self.num_heads, layer.query_map),
            (self.num_kv_heads, layer.key_map),
        ):
            if (weight is None) == (self.feature_map == "hedgehog"):
                wanted = "weights in each layer for 'hedgehog', and none for other maps"
                got, advice = f"feature_map={self.feature_map!r}", "decode eagerly"
                raise CannotCompile(expected("a layer's feature map", wanted, got, advice))
            if weight is not None:
                half = max(1, self.num_features // 2)
                _check_shape("a layer's feature map", weight, (heads, self.head_dim, half))

    @property
    def settings(self) -> dict[str, Any]:
        """Sizes, and all that is not in tensors, by name; of the norms a tuple of eps and kind."""
        first, tokens = self.layers[0], self.tokens
        norms = [self.norm, *(x for layer in self.layers for x in (layer.norm1, layer.norm2))]
        return {
            "num_layers": len(self.layers),
            **{name: getattr(self, name) for name in _SETTINGS},
            "hidden": first.expand.weight.shape[1],
            "gated": first.gate is not None,
            "norms": tuple((norm.eps, norm.centered) for norm in norms),
            "tokens": tokens is not None,
            **({} if tokens is None else tokens.settings),
        }

    @property
    def num_features(self) -> int:
        """F, of each head."""
        learned = self.layers[0].query_map if self.layers else None
        return self.head_dim if learned is None else 2 * learned.shape[-1]

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the model, always in the same order."""
        return (x for x in self._places() if x is not None)

    def _places(self) -> Iterator[Tensor | None]:
        yield from (self.norm.weight, self.norm.bias)
        for layer in self.layers:
            for affine in (layer.qkv, layer.out, layer.expand, layer.contract, layer.gate):
                if affine is not None:
                    yield from (affine.weight, affine.bias)
            for norm in (layer.norm1, layer.norm2):
                yield from (norm.weight, norm.bias)
            yield from (layer.decay_logits, layer.decay_weight, layer.log_gamma)
            yield from (layer.query_map, layer.key_map)
        if self.tokens is not None:
            yield from (*self.tokens.embeddings, self.tokens.start, self.tokens.positions)
            yield from (self.tokens.output.weight, self.tokens.output.bias)

    @property
    def has_gated_decay(self) -> bool:
        """Whether the decay of a position depends on its input."""
        return bool(self.layers) and self.layers[0].decay_weight is not None

    def state_shapes(self, batch: int) -> list[tuple[int, ...]]:
        """The shapes of a layer's state, a `DecoderState`."""
        heads, dim = (batch, self.num_kv_heads), self.head_dim
        sums = (*heads, self.num_features)
        rows = [dim + self.has_gated_decay, dim] if self.window_size else []
        return [*((*heads, self.window_size, x) for x in rows), (*sums, dim), sums]

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        devices = list(dict.fromkeys(x.device for x in self.tensors()))
        if len(devices) > 1:
            names = ", ".join(map(str, devices))
            advice = "move the whole model by .to()"
            raise CannotCompile(expected("the weights", "one device", names, advice))
        return devices[0]


def _check_shape(what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        advice = "all layers of a compiled model have the same shapes, so decode eagerly"
        raise CannotCompile(expected(what, f"shape {shape}", tuple(tensor.shape), advice))


def _check_affine(what: str, affine: Affine, inputs: int, outputs: int) -> None:
    _check_shape(f"{what} weight", affine.weight, (inputs, outputs))
    if affine.bias is not None:
        _check_shape(f"{what} bias", affine.bias, (outputs,))


def _check_norm(what: str, norm: Norm, embed: int) -> None:
    _check_shape(f"{what}'s weight", norm.weight, (embed,))
    if norm.bias is not None:
        _check_shape(f"{what}'s bias", norm.bias, (embed,))


def _check_tokens(tokens: TokenCoding, embed: int) -> None:
    levels = tokens.embeddings[0].shape[0]
    for table in tokens.embeddings:
        _check_shape("an embedding", table, (levels, embed))
    if tokens.start is not None:
        _check_shape("the start vector", tokens.start, (embed,))
    if tokens.positions is not None:
        _check_shape(
            "the table of positions", tokens.positions, (*tokens.positions.shape[:1], embed)
        )
    parameters = tokens.output.weight.shape[-1]
    if tokens.sampler is not None:
        channels = len(tokens.embeddings)
        _check_sampler(tokens.sampler, levels, channels)
        parameters = tokens.sampler.parameters(channels)
    _check_affine("the output", tokens.output, embed, parameters)


def _check_sampler(sampler: Sampler, levels: int, channels: int) -> None:
    """Refuses a head that would draw tokens without an embedding."""
    fits = {
        "categorical": channels == 1 and sampler.choices == levels,
        "mixture_of_logistics": channels in (1, 3) and sampler.choices > 0,
    }
    if not fits.get(sampler.kind):
        wanted = f"one that draws the {levels} tokens of the embeddings"
        got = f"{sampler.kind} with {sampler.choices} choices and {channels} channels"
        raise CannotCompile(expected("the head", wanted, got))


class Draw(NamedTuple):
    """How a step draws the token of each row: settings, and random numbers in [0, 1).

    A token is where the distribution function of softmax(logits / temperature), over the tokens
    that pass the row's filters, exceeds the row's first number; a mixture's values come from those
    that follow. Filters see these probabilities, `top_p` and `min_p` after `top_k`.

    Attributes:
        temperature: (B,) float64, above 0; below 1e-30 the likeliest token is taken, and filters
            see the probabilities at temperature 1. Its memory does not change after the draw.
        uniform: (B, 4) float64 in [0, 1).
        top_k: (B,) int64, 0 for none: passes the `top_k` likeliest tokens, and those equally likely
            as the last of them.
        top_p: (B,) float64, 0 for none: passes the nucleus, the fewest likeliest tokens whose
            probabilities sum to at least `top_p`, and those equally likely as the last of them.
        min_p: (B,) float64, 0 for none: passes tokens at least `min_p` times as likely as the
            likeliest.
        is_filtered: whether a row may have a filter; otherwise all limits are 0.

    Limits are new tensors where one of them or a temperature changes.
    """

    temperature: Tensor
    uniform: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    is_filtered: bool = True


# The state of a layer: s (B, H_kv, F, D) and z (B, H_kv, F). With a window, before them the keys
# and values of the last w positions, (B, H_kv, w, D) each; those of position p in slot p mod w. Of
# a gated decay, each key is followed by the logarithm of the factor of its position.
DecoderState = tuple[Tensor, ...]


class NativeDecoder(Protocol):
    """A decoder with packed copies of the weights; later changes of the tensors do not reach it.

    Shapes and dtypes of inputs have been checked; their values have not. The caller has passed
    states that the decoder did not make to `check`, once. They are updated in place. Several
    threads may call it at once with different states. A decoder that steps states anywhere in
    memory equally fast inherits `reserve` from this protocol, and one that makes one step in a call
    inherits `most_steps` and `steps`.

    Attributes:
        nbytes: bytes of the packed weights.
        instruction_set: the instructions, or the GPU, that the weights were packed for.
    """

    @property
    def nbytes(self) -> int: ...

    @property
    def instruction_set(self) -> str: ...

    @property
    def most_steps(self) -> int:
        """The most steps that one call of `steps` makes; 1 for a decoder without `steps`."""
        return 1

    @property
    def has_filters(self) -> bool:
        """Whether `step` and `steps` apply the filters of a draw; False for one that does not say.

        If not, no draw with filters is passed.
        """
        return False

    def check(self, states: Sequence[DecoderState]) -> None:
        """Refuses states of the right shapes whose memory it cannot step; by default none."""
        return

    def prefill(
        self, inputs: Tensor, lengths: Tensor | None, states: Sequence[DecoderState]
    ) -> Tensor:
        """Whole prompts, padded on the right, from position 0 on.

        Args:
            inputs: tokens (B, N) or (B, N, C), int64, which follow a start vector; or vectors
                (B, N, E), float32.
            lengths: (B,) int64, the number of inputs of each row (a start vector counts); None
                where each row has all.
            states: of each layer before position 0: zeros.

        Returns:
            (B, P), the parameters after each row's last input; for vectors (B, N, E).
        """

    def read(
        self,
        tokens: Tensor,
        lengths: Tensor | None,
        position: int | Tensor,
        states: Sequence[DecoderState],
    ) -> Tensor:
        """More tokens of each row, which continue its state.

        Args:
            tokens: (B, N) or (B, N, C), int64, padded on the right.
            lengths: (B,) int64 in 0..N, the tokens of each row; None where each row has all.
            position: of the first tokens: an int for all rows, or (B,) int64. A padded row must
                have room for N tokens too.
            states: of each layer; updated in place.

        Returns:
            (B, P), the parameters after each row's last token; of a row without tokens, anything.
        """

    def step(
        self,
        inputs: Tensor,
        position: int | Tensor,
        states: Sequence[DecoderState],
        draw: Draw | None,
    ) -> tuple[Tensor, Tensor | None]:
        """One input of each row.

        Args:
            inputs: tokens (B,) or (B, C), int64; or vectors (B, E), float32.
            position: of the inputs: an int for all rows, or (B,) int64. With (B,), a row of
                float32 weights is computed alone as it is beside others, bit for bit.
            states: of each layer; updated in place.
            draw: how to draw the next tokens; None draws none.

        Returns:
            The parameters (B, P), or for vectors (B, E); and the tokens that were drawn, (B,) or
            (B, C) int64, None without a draw. A step of reserved states may overwrite the
            parameters that the step before returned.
        """

    def steps(
        self,
        tokens: Tensor,
        position: int | Tensor,
        states: Sequence[DecoderState],
        draw: Draw,
        count: int,
    ) -> tuple[Tensor, Tensor]:
        """As `count` calls of `step`, each with the tokens that the one before drew.

        Args:
            tokens: of the first step, (B,) or (B, C) int64.
            position: of the first step, as for `step`.
            states: as for `step`.
            draw: as for `step`, with the random numbers of all steps, (count, B, 4).
            count: at least 1.

        Returns:
            The parameters (count, B, P) and the tokens that were drawn, (count, B) or
            (count, B, C) int64.

        Raises:
            TypeError: the decoder makes one step in a call.
        """
        wanted = "a decoder that makes several steps in one call"
        raise TypeError(expected("steps", wanted, f"a {type(self).__name__}", "call step"))

    def reserve(self, batch: int, owner: object) -> tuple[DecoderState, ...] | None:
        """Reserves states in the memory where this decoder steps fastest, while `owner` lives.

        Nothing may use them after `owner` is gone. None where the decoder steps any state equally
        fast.
        """
        return None
