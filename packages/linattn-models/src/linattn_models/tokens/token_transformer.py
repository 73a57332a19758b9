"""What transformers over tokens share: embeddings before the layers, a distribution after them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import as_int, at_least, lengths_within
from linattn_models.decoding import (
    CompiledDecoder,
    Prompt,
    Stepper,
    TokenModel,
    choose_source,
)
from linattn_models.heads import Categorical, Head
from linattn_models.heads.base import check_sequences, check_step_shape, check_tokens
from linattn_models.layers.config import TransformerConfig
from linattn_models.layers.transformer import Transformer
from linattn_models.state import (
    NOTHING,
    DecodingState,
    check_end,
    check_parameters,
    known_parameters,
    remember,
)
from linattn_models.tokens.positions import STD, Positions
from linattn_models.weights.fingerprint import check_weights, compute_fingerprint
from linattn_models.weights.sharded import needs_whole
from linattn_models.weights.tied import TiedLinear


class TokenTransformer(TokenModel, nn.Module):
    """Generates token by token. A subclass makes its layers between `add_tokens` and `add_output`.

    The input of position i is the vector of token i - 1 (at position 0 a learned start vector) plus
    the vector of position i; the output holds the head's parameters for token i. A token has one
    value, or three (red, green, blue), whose vectors are summed.

    Attributes:
        start: (E,), the start vector; None in a model without one, whose token i is at position i.
    """

    start: nn.Parameter | None

    transformer: Transformer

    def add_tokens(
        self,
        config: TransformerConfig,
        head: Head | int,
        max_length: int | None,
        positions: str,
        start: bool = True,
    ) -> None:
        """Makes the embeddings, the start vector and the positions."""
        if max_length is not None:
            max_length = at_least("max_length", max_length, 1)
        embed_dim = config.embed_dim
        self.head = _as_head(head)
        if config.tie_embeddings and not isinstance(self.head, Categorical):
            wanted = "False with a head that is not Categorical"
            raise ValueError(expected("tie_embeddings", wanted, f"True with {self.head}"))
        self.max_length: Any = max_length  # int or None; Any spares callers a cast
        self.position_kind = positions
        vector = nn.Parameter(torch.randn(embed_dim) * STD) if start else None
        self.register_parameter("start", vector)
        self.embeddings = nn.ModuleList(
            embedding_of(self.head.levels, embed_dim) for _ in range(self.head.channels)
        )
        self.positions = Positions(positions, max_length, embed_dim)

    def add_output(self) -> None:
        """Makes the linear layer that gives the head its parameters."""
        # Other heads start from a bias that is not zero.
        bias = self.config.bias or not isinstance(self.head, Categorical)
        self.output: nn.Linear | TiedLinear
        if self.config.tie_embeddings:
            self.output = TiedLinear(self.embeddings, bias)
        else:
            self.output = nn.Linear(self.config.embed_dim, self.head.num_parameters, bias=bias)
        if self.output.bias is not None:
            with torch.no_grad():
                self.output.bias.copy_(self.head.initial_bias())

    @property
    def config(self) -> TransformerConfig:
        return self.transformer.config

    def fingerprint(self) -> str | None:
        """The SHA-256 of the weights, that which `save` writes as "sha256".

        None where they are divided among ranks or quantized.

        Cost: as long as a step; more if the weights have changed since the last call.
        """
        return compute_fingerprint(self)

    def choose_source(self, method: str, decoder: str | CompiledDecoder, prompt: Prompt) -> Stepper:
        return choose_source(self, method, decoder, prompt)

    @needs_whole
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
            tokens: (B, N) int64, or (B, N, 3); N below `longest`, or up to it without a start
                vector; padded on the right with any tokens in range.
            lengths: (B,) int, each prompt's own length in 0..N; all N by default.
            state: from `prefill`, `step`, `generate` or `read`; the tokens continue its sequences.
                Under `torch.no_grad` a softmax cache is written in place. A model with a source
                needs one.
            max_length: the number of positions to make room for; by default that of `state`, or
                that of the model.

        Returns:
            (B, P) and the new state. Its position is `lengths`, plus 1 for a start vector; or that
            of `state` plus `lengths`.

        Raises:
            ValueError, TypeError: another shape, dtype, length or value, or a state of other sizes,
                dtype or device, or with the fingerprint of other weights.
        """
        if state is None:
            parameters, state = self._begin(tokens, lengths, max_length)
            recent = remember(None, tokens, lengths, NOTHING)
            return parameters, replace(state, recent=recent)
        check_parameters(state, self.head.num_parameters)
        self._check_state(state)
        fingerprint = check_weights(state.fingerprint, self)
        check_sequences(self.head, tokens, 0, None)
        if lengths is not None:
            shortest, longest = lengths_within("lengths", lengths, *tokens.shape[:2])
            lengths = None if shortest == longest else lengths.to(tokens.device, torch.int64)
            tokens = tokens[:, :longest]
        check_end(state.cursor.after(tokens.shape[1], lengths).furthest, self.longest)
        before = known_parameters(state, tokens.shape[1], lengths)
        recent_before = state.recent
        if tokens.shape[1] == 0:
            room = state.max_length if max_length is None else max_length
            return cast(Tensor, before), state.with_room(room)
        x = self.positions(self._embed(tokens), state.cursor.position)  # (B, N, E)
        y, state = self._prefill_layers(x, lengths, state, max_length)  # (B, E)
        parameters = cast(Tensor, self.output(y))
        if before is not None and lengths is not None:
            parameters = torch.where((lengths > 0).unsqueeze(1), parameters, before)
        recent = remember(recent_before, tokens, lengths)
        state = replace(state, parameters=parameters, recent=recent)
        return parameters, replace(state, fingerprint=fingerprint)

    @needs_whole
    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The parameters for the token after `token`.

        Args:
            token: (B,) int64, or (B, 3), one of each sequence.
            state: from `prefill` or `step`; updated in place under `torch.no_grad`.

        Returns:
            (B, P) and the next state.

        Raises:
            ValueError, TypeError: another shape or dtype, on the CPU also a value out of range,
                a sequence that is full, or a state of other sizes, dtype, device or weights.

        Cost: for linear attention the same at every position, for softmax O(position).
        """
        check_step_shape(self.head, token)
        check_tokens(self.head, token)
        check_parameters(state, self.head.num_parameters)
        check_end(state.cursor.furthest + 1, self.longest)
        fingerprint = check_weights(state.fingerprint, self, step=True)
        vectors = self.positions.at(self._embed(token), state.cursor.position)  # (B, E)
        y, state = self._step_layers(vectors, state)
        parameters = cast(Tensor, self.output(y))
        return parameters, replace(state, parameters=parameters, fingerprint=fingerprint)

    @property
    def has_start(self) -> bool:
        return self.start is not None

    @property
    def longest(self) -> int | None:
        return self.positions.limit

    @property
    def device(self) -> torch.device:
        return next(self.embeddings.parameters()).device

    @abstractmethod
    def _begin(
        self, tokens: Tensor, lengths: Tensor | None, max_length: int | None
    ) -> tuple[Tensor, DecodingState]:
        """`prefill` without a state."""

    # How the layers continue from a state. A model whose states hold more replaces these three.

    def _check_state(self, state: DecodingState) -> None:
        self.transformer.check_state(state)

    def _step_layers(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        return self.transformer.step(x, state)

    def _prefill_layers(
        self, x: Tensor, lengths: Tensor | None, state: DecodingState, max_length: int | None
    ) -> tuple[Tensor, DecodingState]:
        return self.transformer.prefill_last(x, lengths, state, max_length=max_length)

    def _embed(self, tokens: Tensor) -> Tensor:
        """The vectors of tokens: (...) or (..., 3) -> (..., E)."""
        if self.head.channels == 1:
            return cast(Tensor, self.embeddings[0](tokens))
        vectors = [table(tokens[..., c]) for c, table in enumerate(self.embeddings)]
        return cast(Tensor, sum(vectors[1:], vectors[0]))

    def _enter(self, tokens: Tensor, position: int = 0) -> Tensor:
        """The inputs of positions 0..N: start vector and tokens, plus the vectors of positions.

        From a later position on, without the start vector, whose gradient is then 0: data
        parallelism needs one on every rank.
        """
        vectors = self._embed(tokens)
        if self.start is not None:
            start = self.start.expand(tokens.shape[0], 1, -1)
            vectors = torch.cat([start, vectors], 1)  # (B, N + 1, E)
            vectors = vectors[:, 1:] if position else vectors
        return cast(Tensor, self.positions(vectors, position))

    def _predict(self, parameters: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        return parameters, replace(state, parameters=parameters)


def embedding_of(tokens: int, embed_dim: int) -> nn.Embedding:
    """A table of small vectors, one per token."""
    table = nn.Embedding(tokens, embed_dim)
    nn.init.normal_(table.weight, std=STD)
    return table


def _as_head(head: object) -> Head:
    """The head itself; an int n stands for `Categorical(n)`."""
    if isinstance(head, Head):
        return head
    if as_int(head) is None:
        raise TypeError(expected("head", "a head, or an int for Categorical", quote(head)))
    return Categorical(cast(int, head))
