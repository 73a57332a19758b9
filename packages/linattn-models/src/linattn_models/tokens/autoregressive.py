"""A transformer that predicts each token of a sequence from those before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.decoder_spec import CannotCompile, DecoderDescription, TokenCoding
from linattn_core.errors import expected
from linattn_models.attention import Attention
from linattn_models.basics.packing import last_of
from linattn_models.basics.validation import (
    boolean,
    exact_keys,
    instance,
    lengths_within,
    no_dropout,
)
from linattn_models.decoding.prompts import read_prefix
from linattn_models.heads import Categorical, Head, MixtureOfLogistics, head_from_dict
from linattn_models.heads.base import check_sequences
from linattn_models.layers.config import TransformerConfig
from linattn_models.layers.transformer import Transformer
from linattn_models.state import DecodingState, room_for
from linattn_models.tokens.likelihood import Likelihood
from linattn_models.tokens.positions import WITHOUT_VECTORS, Positions
from linattn_models.tokens.token_transformer import TokenTransformer
from linattn_models.weights import description

# Rows of the table of positions in a compiled decoder, for a model without a max_length.
DEFAULT_POSITIONS = 4096
_MOST_POSITIONS = 1 << 17


class AutoregressiveTransformer(Likelihood, TokenTransformer):
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
        positions: "learned", "sinusoidal", "rotary" (which sets `rotary` of the layers) or "none";
            by default "rotary" where the layers are, else "learned".
        start: whether the model has a start vector. Without one, token i is at position i, and the
            first token of a sequence has the same probability whatever it is: the parameters for
            it are 0. Language models of others have none; the head is then `Categorical`.

    Raises:
        ValueError: a configuration that is not causal, or has blocks or cross-attention; a length
            below 1, learned positions without a length, unknown positions.
        TypeError: not a configuration, or not a head.
    """

    def __init__(
        self,
        config: TransformerConfig,
        head: Head | int,
        max_length: int | None = None,
        positions: str | None = None,
        start: bool = True,
    ) -> None:
        super().__init__()
        instance("config", config, TransformerConfig)
        for name, wanted, advice in (
            ("is_causal", True, "its outputs would see the tokens that they predict"),
            ("causal_block", 1, "its outputs would see the tokens that they predict"),
            ("cross_attention", False, "build a Seq2SeqTransformer, which is given a source"),
        ):
            if (got := getattr(config, name)) != wanted:
                raise ValueError(expected(name, wanted, got, advice))
        config, positions = config.with_positions(positions)
        boolean("start", start)
        self.add_tokens(config, head, max_length, positions, start)
        if not (start or isinstance(self.head, Categorical)):
            raise ValueError(expected("start", True, False, f"beside {self.head}"))
        self.transformer = Transformer(config)
        self.add_output()

    def forward(self, tokens: Tensor) -> Tensor:
        """The head's parameters for every token, each computed from the tokens before it.

        Args:
            tokens: (B, N) int64, or (B, N, 3); N from 1 to `longest`.

        Returns:
            (B, N, P); of a model that `ContextParallel` has divided, for this rank's positions.

        Raises:
            ValueError, TypeError: another shape, dtype, length or value.
        """
        check_sequences(self.head, tokens, 1, self.longest)
        own = self.own_positions(tokens.shape[1])
        known = tokens[:, max(own.start - 1, 0) : max(own.stop - 1, 0)]
        if self.start is None:
            first = max(own.start - 1, 0)
            parameters = self.output(self.transformer(self._enter(known, first), start=first))
            before = 1 if own.start == 0 < own.stop else 0
            return F.pad(parameters, (0, 0, before, 0))
        vectors = self._enter(known, own.start)
        vectors = vectors[:, : own.stop - own.start]  # the start vector alone in an empty part
        return cast(Tensor, self.output(self.transformer(vectors, start=own.start)))

    @torch.no_grad()
    def perplexity(self, text: Any, lengths: Tensor | None = None) -> float:
        """exp(the mean of -log p of each token) of a text, or of several together.

        Without a start vector, the first token of each does not count.

        Args:
            text: a text or a list of them, for a model with a `tokenizer`; or tokens, as `prefix`
                of `generate`.
            lengths: (B,) int, for tokens (B, N) with rows of different lengths.

        Raises:
            ValueError, TypeError: as `generate` for a prefix; training mode with dropout, more
                tokens than the model has positions, or none.
        """
        no_dropout(self.training, self.config.dropout)
        tokens, lengths = read_prefix(self, None, text, lengths, begins=not self.has_start)
        counted = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        counted[:, : 1 - self.has_start] = False
        return float((self.loss(tokens, lengths, counted) * self.head.channels).exp())

    def predict_next(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The head's parameters for the token after each prompt, computed without a state.

        Args:
            tokens: (B, N) int64, or (B, N, 3); N below `longest`, or up to it without a start
                vector; padded on the right with any tokens in range.
            lengths: (B,) int, each prompt's own length in 0..N; all N by default.

        Returns:
            (B, P).
        """
        check_sequences(self.head, tokens, 0, self.most_tokens(self.longest))
        if self.mesh is not None:
            wanted, got = "a model that is whole", "one that ContextParallel has divided"
            raise ValueError(expected("predict_next", wanted, got, "call prefill"))
        inputs, vectors = self._inputs(tokens, lengths), self._enter(tokens)
        if vectors.shape[1] == 0:
            return self._first_parameters(len(tokens))
        y = self.transformer(vectors, inputs)  # (B, N + 1, E)
        return self._without_tokens(cast(Tensor, self.output(last_of(y, inputs))), inputs)

    @property
    def can_step(self) -> bool:
        """Whether the model can step; LSH attention, and softmax with a `past_size`, cannot."""
        return not cast(Attention, self.config.attention).cannot_step

    def describe(self, positions: int | None = None) -> DecoderDescription:
        """The model for a backend that compiles whole steps of tokens.

        Args:
            positions: the number of positions that the decoder must be able to step through, for a
                model without a longest sequence.
        """
        layers = self.transformer.describe()
        description.require(self, AutoregressiveTransformer)
        description.require(self.positions, Positions)
        known = type(self.head) in (Categorical, MixtureOfLogistics)
        coding = TokenCoding(
            embeddings=tuple(description.embedding(table) for table in self.embeddings),
            start=description.optional(self.start, "the start vector"),
            positions=self._table(positions),
            output=description.affine(self.output),
            sampler=self.head.sampler() if known else None,
        )
        return replace(layers, tokens=coding)

    def to_dict(self) -> dict[str, Any]:
        """The settings from which `from_dict` builds the model, without weights, as JSON values."""
        return {
            "transformer": self.config.to_dict(),
            "head": self.head.to_dict(),
            "max_length": self.max_length,
            "positions": self.position_kind,
            **({} if self.has_start else {"start": False}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AutoregressiveTransformer:
        """A model with the settings that `to_dict` returned, with newly drawn weights."""
        keys = ("transformer", "head", "max_length", "positions")
        what = "An AutoregressiveTransformer's description"
        values = exact_keys(what, values, keys, ["start"])
        return cls(
            TransformerConfig.from_dict(values["transformer"]),
            head_from_dict(values["head"]),
            values["max_length"],
            values["positions"],
            values.get("start", True),
        )

    def _begin(
        self, tokens: Tensor, lengths: Tensor | None, max_length: int | None
    ) -> tuple[Tensor, DecodingState]:
        """`prefill` from the start."""
        room = self._room(max_length)
        check_sequences(self.head, tokens, 0, self.most_tokens(room))
        inputs, vectors = self._inputs(tokens, lengths), self._enter(tokens)
        if vectors.shape[1] == 0:
            state = self.transformer.initial_state(len(tokens), max_length=room)
            return self._predict(self._first_parameters(len(tokens)), state)
        y, state = self.transformer.prefill_last(vectors, inputs, max_length=room)
        return self._predict(self._without_tokens(cast(Tensor, self.output(y)), inputs), state)

    def _first_parameters(self, batch: int) -> Tensor:
        """(B, P), the parameters for the first token of a model without a start vector."""
        return self.output.weight.new_zeros(batch, self.head.num_parameters)

    def _without_tokens(self, parameters: Tensor, inputs: Tensor | None) -> Tensor:
        """The parameters (B, P), those for the first token in rows without inputs."""
        if self.has_start or inputs is None:
            return parameters
        return parameters.masked_fill((inputs == 0).unsqueeze(1), 0.0)

    def _room(self, max_length: int | None) -> int | None:
        """The number of positions to make room for: `max_length`, `longest` or the default."""
        if max_length is None and self.longest is None:
            return self.max_length if self.config.has_cache else None
        return room_for(max_length, self.longest)

    def _table(self, positions: int | None) -> Tensor | None:
        """The vectors of positions that a compiled decoder reads, (rows, E); None for none."""
        if self.position_kind in WITHOUT_VECTORS:
            return None
        least = positions or self.max_length or DEFAULT_POSITIONS
        if least > _MOST_POSITIONS and self.position_kind == "sinusoidal":
            wanted = f"at most {_MOST_POSITIONS:,}, rows of a table"
            advice = "decode eagerly, or build the model with positions='none'"
            raise CannotCompile(expected("compiled positions", wanted, least, advice))
        table = self.positions.rows(least, next(self.embeddings.parameters()))
        return description.numbers(table, "the table of positions")

    def _inputs(self, tokens: Tensor, lengths: Tensor | None) -> Tensor | None:
        """The numbers of inputs (B,) of prompts, a start vector included; None for whole rows."""
        if lengths is None:
            return None
        shortest, _ = lengths_within("lengths", lengths, *tokens.shape[:2])
        if shortest == tokens.shape[1]:
            return None
        return lengths.to(tokens.device, torch.int64) + self.has_start
