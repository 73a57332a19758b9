"""A transformer that predicts each token of a sequence from those before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from linattn_core.decoding import CannotCompile, DecoderDescription, TokenCoding
from linattn_core.errors import expected
from linattn_models import description
from linattn_models.attention import Attention, Softmax
from linattn_models.config import TransformerConfig
from linattn_models.decoding import Generation
from linattn_models.heads import Categorical, Head, MixtureOfLogistics, head_from_dict
from linattn_models.heads.base import Drawn, check_sequences, check_step_shape, check_tokens
from linattn_models.likelihood import Likelihood
from linattn_models.positions import Positions
from linattn_models.state import (
    DecodingState,
    check_end,
    check_positions,
    known_parameters,
    less_one,
    room_for,
)
from linattn_models.transformer import Transformer
from linattn_models.validation import at_least, exact_keys, lengths_within

# Standard deviation of the initial vectors: small, so that early updates can change them a lot.
_STD = 0.02
# Rows of the table of positions in a compiled decoder, for a model without a max_length.
DEFAULT_POSITIONS = 4096
_MOST_POSITIONS = 1 << 17


class AutoregressiveTransformer(Generation, Likelihood, nn.Module):
    """p(tokens) = prod_i p(tokens[i] | tokens[:i]), with a causal transformer and an output head.

    The input of position i is the vector of token i - 1 (at position 0 a learned start vector) plus
    the vector of position i; the output is the head's parameters for token i. A token has one
    value, or three (red, green, blue), whose vectors are summed.

    Args:
        config: the layers; must be causal, with causal_block 1 and no cross-attention.
        head: the distribution of a token, or an int for `Categorical(head)`.
        max_length: tokens of a sequence. With learned positions it is required, and no sequence
            may be longer. With others it is only the default length of `generate` and the default
            size of a softmax cache; None for no default.
        positions: "learned", "sinusoidal" or "none".

    Raises:
        ValueError: a configuration that is not causal, or has blocks or cross-attention; a length
            below 1, learned positions without a length, unknown positions.
    """

    def __init__(
        self,
        config: TransformerConfig,
        head: Head | int,
        max_length: int | None = None,
        positions: str = "learned",
    ) -> None:
        super().__init__()
        advice = "its outputs would see the tokens that they predict"
        if not config.is_causal:
            raise ValueError(expected("is_causal", True, False, advice))
        if config.causal_block > 1:
            raise ValueError(expected("causal_block", 1, config.causal_block, advice))
        if config.cross_attention:
            advice = "build an EncoderDecoder, which is given a source"
            raise ValueError(expected("cross_attention", False, True, advice))
        if max_length is not None:
            at_least("max_length", max_length, 1)
        self.head: Head = Categorical(head) if isinstance(head, int) else head
        self.max_length: Any = max_length  # int or None; Any spares callers a cast
        self.position_kind = positions
        embed_dim = config.embed_dim
        self.start = nn.Parameter(torch.randn(embed_dim) * _STD)
        self.embeddings = nn.ModuleList(
            nn.Embedding(self.head.levels, embed_dim) for _ in range(self.head.channels)
        )
        for embedding in self.embeddings:
            nn.init.normal_(cast(nn.Embedding, embedding).weight, std=_STD)
        self.positions = Positions(positions, max_length, embed_dim, std=_STD)
        self.transformer = Transformer(config)
        self.output = nn.Linear(embed_dim, self.head.num_parameters)
        with torch.no_grad():
            self.output.bias.copy_(self.head.initial_bias())

    @property
    def config(self) -> TransformerConfig:
        """The configuration of the layers."""
        return self.transformer.config

    def forward(self, tokens: Tensor) -> Tensor:
        """The head's parameters for every token, each computed from the tokens before it.

        Args:
            tokens: (B, N) int64, or (B, N, 3); N from 1 to `longest`.

        Returns:
            (B, N, P).

        Raises:
            ValueError, TypeError: another shape, dtype, length or value.
        """
        check_sequences(self.head, tokens, 1, self.longest)
        vectors = self._enter(tokens[:, :-1])
        return cast(Tensor, self.output(self.transformer(vectors)))

    def predict_next(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The head's parameters for the token after each prompt, computed without a state.

        Args:
            tokens: (B, N) int64, or (B, N, 3); N below `longest`; padded on the right with any
                tokens in range.
            lengths: (B,) int, each prompt's own length in 0..N; all N by default.

        Returns:
            (B, P).
        """
        check_sequences(self.head, tokens, 0, less_one(self.longest))
        inputs = self._inputs(tokens, lengths)
        return self._last(self.transformer(self._enter(tokens), inputs), inputs)

    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """The parameters for the token after each prompt, and the state to continue from.

        Args:
            tokens: (B, N) int64, or (B, N, 3); N below `longest`; padded on the right with any
                tokens in range.
            lengths: (B,) int, each prompt's own length in 0..N; all N by default.
            state: from `prefill`, `step` or `generate`; the tokens continue its sequences. Under
                `torch.no_grad` a softmax cache is written in place.
            max_length: the number of positions to make room for; by default that of `state`, or
                that of the model.

        Returns:
            (B, P) and the new state. Its position is `lengths` + 1 (the start vector counts), or
            that of `state` plus `lengths`.

        Raises:
            ValueError, TypeError: another shape, dtype, length or value, or a state of another
                model, dtype or device.
        """
        if state is not None:
            return self._extend(tokens, lengths, state, max_length)
        room = self._room(max_length)
        check_sequences(self.head, tokens, 0, less_one(room))
        inputs = self._inputs(tokens, lengths)
        y, state = self.transformer.prefill(self._enter(tokens), inputs, max_length=room)
        return self._predicted(self._last(y, inputs), state)

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The parameters for the token after `token`.

        Args:
            token: (B,) int64, or (B, 3), one of each sequence.
            state: from `prefill` or `step`; updated in place under `torch.no_grad`.

        Returns:
            (B, P) and the next state.

        Raises:
            ValueError, TypeError: another shape or dtype, on the CPU also a value out of range,
                or a sequence that is full.

        Cost: for linear attention the same at every position, for softmax O(position).
        """
        check_step_shape(self.head, token)
        check_tokens(self.head, token)
        check_positions(state.cursor, self.longest)
        vectors = self.positions.at(self._embed(token), state.cursor.position)  # (B, E)
        y, state = self.transformer.step(vectors, state)
        return self._predicted(cast(Tensor, self.output(y)), state)

    @property
    def longest(self) -> int | None:
        """The most tokens in a sequence; None where sequences have no end."""
        return self.positions.limit

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.start.device

    @property
    def can_step(self) -> bool:
        """Whether the model can step: LSH attention has no state and cannot."""
        return not cast(Attention, self.config.attention).cannot_step

    def describe(self, positions: int | None = None) -> DecoderDescription:
        """The model for a backend that compiles whole steps of tokens.

        Args:
            positions: the number of positions that the decoder must be able to step through, for a
                model without a longest sequence.

        Raises:
            CannotCompile: as for `Transformer.describe`.
        """
        layers = self.transformer.describe()
        description.require(self, AutoregressiveTransformer)
        description.require(self.positions, Positions)
        known = type(self.head) in (Categorical, MixtureOfLogistics)
        coding = TokenCoding(
            embeddings=tuple(description.embedding(table) for table in self.embeddings),
            start=description.numbers(self.start, "the start vector"),
            positions=description.numbers(self._table(positions), "the table of positions"),
            output=description.affine(self.output),
            sampler=cast(Drawn, self.head).sampler() if known else None,
        )
        return replace(layers, tokens=coding)

    def to_dict(self) -> dict[str, Any]:
        """The settings from which `from_dict` builds the model, without weights, as JSON values."""
        return {
            "transformer": self.config.to_dict(),
            "head": self.head.to_dict(),
            "max_length": self.max_length,
            "positions": self.position_kind,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AutoregressiveTransformer:
        """A model with the settings that `to_dict` returned, with newly drawn weights.

        Raises:
            ValueError: a key that is unknown or missing, or a value out of range.
        """
        keys = ("transformer", "head", "max_length", "positions")
        values = exact_keys("An AutoregressiveTransformer's description", values, keys)
        return cls(
            TransformerConfig.from_dict(values["transformer"]),
            head_from_dict(values["head"]),
            values["max_length"],
            values["positions"],
        )

    def _embed(self, tokens: Tensor) -> Tensor:
        """The vectors of tokens: (...) or (..., 3) -> (..., E)."""
        if self.head.channels == 1:
            return cast(Tensor, self.embeddings[0](tokens))
        vectors = [table(tokens[..., c]) for c, table in enumerate(self.embeddings)]
        return cast(Tensor, sum(vectors[1:], vectors[0]))

    def _enter(self, tokens: Tensor) -> Tensor:
        """The inputs of positions 0..N: start vector and tokens, plus the vectors of positions."""
        start = self.start.expand(tokens.shape[0], 1, -1)
        vectors = torch.cat([start, self._embed(tokens)], 1)  # (B, N + 1, E)
        return cast(Tensor, self.positions(vectors))

    def _extend(
        self,
        tokens: Tensor,
        lengths: Tensor | None,
        state: DecodingState,
        max_length: int | None,
    ) -> tuple[Tensor, DecodingState]:
        """`prefill` that continues a state."""
        self.transformer.check_state(state)
        check_sequences(self.head, tokens, 0, None)
        if lengths is not None:
            lengths_within("lengths", lengths, *tokens.shape[:2])
            lengths = lengths.to(tokens.device, torch.int64)
        check_end(state.cursor.after(tokens.shape[1], lengths), self.longest)
        before = known_parameters(state, tokens.shape[1], lengths)
        if tokens.shape[1] == 0:
            room = state.max_length if max_length is None else max_length
            return cast(Tensor, before), state.with_room(room)
        x = self.positions(self._embed(tokens), state.cursor.position)  # (B, N, E)
        y, state = self.transformer.prefill(x, lengths, state, max_length=max_length)
        parameters = self._last(y, lengths)
        if before is not None and lengths is not None:
            parameters = torch.where((lengths > 0).unsqueeze(1), parameters, before)
        return self._predicted(parameters, state)

    def _predicted(self, parameters: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        return parameters, replace(state, parameters=parameters)

    def _room(self, max_length: int | None) -> int | None:
        """The number of positions to make room for: `max_length`, `longest` or the default."""
        if max_length is None and self.longest is None:
            is_cached = isinstance(self.config.attention, Softmax)
            return self.max_length if is_cached else None
        return room_for(max_length, self.longest)

    def _table(self, positions: int | None) -> Tensor:
        """The vectors of positions that a compiled decoder reads, (rows, E)."""
        least = positions or self.max_length or DEFAULT_POSITIONS
        if least > _MOST_POSITIONS and self.position_kind == "sinusoidal":
            wanted = f"at most {_MOST_POSITIONS:,}, rows of a table"
            advice = "decode eagerly, or build the model with positions='none'"
            raise CannotCompile(expected("compiled positions", wanted, least, advice))
        return self.positions.rows(least, self.start)

    def _inputs(self, tokens: Tensor, lengths: Tensor | None) -> Tensor | None:
        """The numbers of inputs (B,) of prompts: their lengths and one for the start vector."""
        if lengths is None:
            return None
        lengths_within("lengths", lengths, *tokens.shape[:2])
        return lengths.to(tokens.device, torch.int64) + 1

    def _last(self, y: Tensor, inputs: Tensor | None) -> Tensor:
        """The parameters after each row's last input: (B, N + 1, E) -> (B, P)."""
        if inputs is None:
            return cast(Tensor, self.output(y[:, -1]))
        rows = torch.arange(y.shape[0], device=y.device)
        return cast(Tensor, self.output(y[rows, inputs - 1]))
