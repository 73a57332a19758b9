"""A transformer from tokens to tokens: a source is read once, a target generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import DecoderDescription
from linattn_core.errors import expected
from linattn_models.basics.validation import exact_keys, instance, key_mask_of, no_dropout
from linattn_models.decoding import CompiledDecoder, Prompt, Stepper
from linattn_models.heads import Categorical, Head, head_from_dict
from linattn_models.heads.base import check_sequences
from linattn_models.layers.block import Block
from linattn_models.layers.config import TransformerConfig
from linattn_models.layers.transformer import Memory, Transformer
from linattn_models.state import NOTHING, DecodingState, check_fits, check_layers, remember
from linattn_models.tokens.likelihood import log_probs_under, mean_loss
from linattn_models.tokens.positions import Positions
from linattn_models.tokens.token_transformer import TokenTransformer, embedding_of
from linattn_models.weights.sharded import needs_whole


class Seq2SeqTransformer(TokenTransformer):
    """p(target | source) = prod_i p(target[i] | target[:i], source), by an encoder and a decoder.

    The encoder sees its whole source. Each block of the decoder attends to the target so far and,
    by linear attention, to the encoder's outputs. `read` takes the sums of both once; the state
    that it returns has a fixed size, and a token costs the same whatever the lengths.

    Args:
        encoder: a configuration that is not causal.
        decoder: a causal configuration with `cross_attention=True`, of the same embed_dim.
        source_vocabulary: number of tokens of sources.
        head: the distribution of a target's token, or an int for `Categorical(head)`.
        max_length: with learned positions, which need it, the most tokens of a source and of a
            target; else the default of `generate` alone.
        positions: of sources and targets, as for `AutoregressiveTransformer`. With "none", the
            encoder does not see the order of its tokens.

    Raises:
        ValueError: configurations that do not fit, sizes out of range, unknown positions.
    """

    def __init__(
        self,
        encoder: TransformerConfig,
        decoder: TransformerConfig,
        source_vocabulary: int,
        head: Head | int,
        max_length: int | None = None,
        positions: str | None = None,
    ) -> None:
        super().__init__()
        _check_pair(encoder, decoder)
        if decoder.causal_block > 1:
            advice = "its outputs would see the tokens that they predict"
            raise ValueError(expected("causal_block", 1, decoder.causal_block, advice))
        decoder, positions = decoder.with_positions(positions)
        encoder, _ = encoder.with_positions(positions)
        self.source_tokens = Categorical(source_vocabulary)
        self.source_embedding = embedding_of(self.source_tokens.levels, encoder.embed_dim)
        self.add_tokens(decoder, head, max_length, positions)
        self.source_positions = Positions(positions, self.max_length, encoder.embed_dim)
        self.encoder = Transformer(encoder)
        self.transformer = Transformer(decoder)
        self.add_output()

    def forward(self, source: Tensor, target: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """The head's parameters for every token of the target, each from the tokens before it.

        Args:
            source: (B, L) int64; L of 1 or more, with learned positions up to `longest`.
            target: (B, N) int64, or (B, N, 3); N from 1 to `longest`.
            attn_mask: (B, L) bool, False at the source's padding on any side. A padded source
                gives what it gives alone, whatever tokens the padding has. An LSH encoder takes no
                mask.

        Returns:
            (B, N, P).

        Raises:
            ValueError, TypeError: another shape, dtype, length or value.
        """
        check_sequences(self.head, target, 1, self.longest, "target")
        memory = self._remember(source, attn_mask)
        if len(source) != len(target):
            wanted = f"a row for each of {len(source)} sources"
            raise ValueError(expected("target", wanted, f"{len(target)} rows"))
        vectors = self._enter(target[:, :-1])
        return cast(Tensor, self.output(self.transformer(vectors, memory=memory)))

    def log_probs(
        self,
        source: Tensor,
        target: Tensor,
        lengths: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """log p of every token of the target given its source and the tokens before it.

        Args:
            source, attn_mask: as for `forward`.
            target: (B, N) int64, or (B, N, 3).
            lengths: (B,) int in 0..N, each target's own length; all N by default. What stands
                beyond it is ignored, whatever it is.

        Returns:
            (B, N) nats, the sum over channels; 0 beyond a target's length.

        Raises:
            ValueError, TypeError: another shape, dtype, length or value.
        """
        model = partial(self, source, attn_mask=attn_mask)
        return log_probs_under(self.head, model, target, lengths)

    def loss(
        self,
        source: Tensor,
        target: Tensor,
        lengths: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """The mean of -log p in nats per dimension (token and channel) of targets, a scalar.

        Args:
            source, target, lengths, attn_mask: as for `log_probs`.

        Raises:
            ValueError, TypeError: as for `log_probs`, or lengths that are all 0.
        """
        return mean_loss(self.head, self.log_probs(source, target, lengths, attn_mask), lengths)

    @needs_whole
    def read(self, source: Tensor, attn_mask: Tensor | None = None) -> DecodingState:
        """The state before the first token of each source's target.

        `generate`, `stream`, `beam_search`, `prefill` and `step` go on from it; its `parameters`
        are those of the first token. Its layers are those of the decoder, then the sums that each
        block's cross-attention takes over the source, which no step changes.

        Args:
            source, attn_mask: as for `forward`.

        Raises:
            ValueError, TypeError: as for `forward`, or training mode with dropout.

        Cost: one pass of the encoder.
        """
        no_dropout(self.training, max(self.encoder.config.dropout, self.config.dropout))
        memory = self._remember(source, attn_mask)
        start = self.positions(cast(Tensor, self.start).expand(len(source), 1, -1))
        y, state = self.transformer.prefill_last(start, max_length=self.longest, memory=memory)
        parameters, state = self._predict(self.output(y), _join_memory(state, memory))
        nothing = torch.zeros(len(source), 0, dtype=torch.int64, device=parameters.device)
        return replace(state, recent=remember(None, nothing, filler=NOTHING))

    def choose_source(self, method: str, decoder: str | CompiledDecoder, prompt: Prompt) -> Stepper:
        """What makes the steps, which continue the state of a source."""
        if prompt.state is None:
            raise _no_source()
        return super().choose_source(method, decoder, prompt)

    @property
    def can_step(self) -> bool:
        """True: cross-attention is linear, and so is the decoder's attention."""
        return True

    def predict_next(self, tokens: Tensor, lengths: Tensor | None = None) -> NoReturn:
        """Raises ValueError: tokens alone have no source."""
        raise _no_source()

    def describe(self, positions: int | None = None) -> DecoderDescription:
        """Raises CannotCompile: cross-attention has no compiled step."""
        return self.transformer.describe()

    def to_dict(self) -> dict[str, Any]:
        """The settings that rebuild the model without its weights, as JSON values."""
        return {
            "encoder": self.encoder.config.to_dict(),
            "decoder": self.config.to_dict(),
            "source_vocabulary": self.source_tokens.vocabulary,
            "head": self.head.to_dict(),
            "max_length": self.max_length,
            "positions": self.position_kind,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Seq2SeqTransformer:
        """A model with fresh weights of the shape that `to_dict` described."""
        keys = ("encoder", "decoder", "source_vocabulary", "head", "max_length", "positions")
        values = exact_keys("the description of a Seq2SeqTransformer", values, keys)
        return cls(
            TransformerConfig.from_dict(values["encoder"]),
            TransformerConfig.from_dict(values["decoder"]),
            values["source_vocabulary"],
            head_from_dict(values["head"]),
            values["max_length"],
            values["positions"],
        )

    def _remember(self, source: Tensor, attn_mask: Tensor | None) -> Memory:
        """The sums of each block's cross-attention over a source (B, L)."""
        if attn_mask is not None and source.ndim == 2:
            attn_mask = key_mask_of(attn_mask, source)
            source = source.masked_fill(~attn_mask, 0)
        check_sequences(self.source_tokens, source, 1, self.source_positions.limit, "source")
        vectors = self.source_embedding(source)  # (B, L, E)
        if attn_mask is None:
            vectors = self.source_positions(vectors)
        else:  # positions count from a row's first token
            places = (attn_mask.cumsum(1) - 1).clamp(min=0)
            vectors = self.source_positions.at(vectors, places)
        memory = self.encoder(vectors, attn_mask=attn_mask)
        return self.transformer.remember(memory, attn_mask=attn_mask)

    def _begin(self, *unused: object) -> NoReturn:
        raise _no_source()

    def _check_state(self, state: DecodingState) -> None:
        own = self.transformer.initial_state(1)
        sums = (cast(Block, block).cross for block in self.transformer.blocks)
        check_fits(
            state, _join_memory(own, tuple(layer.initial_state(1) for layer in sums if layer))
        )

    def _step_layers(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        own, memory = self._split_memory(state)
        y, own = self.transformer.step(x, own, memory)
        return y, _join_memory(own, memory)

    def _prefill_layers(
        self, x: Tensor, lengths: Tensor | None, state: DecodingState, max_length: int | None
    ) -> tuple[Tensor, DecodingState]:
        own, memory = self._split_memory(state)
        y, own = self.transformer.prefill_last(
            x, lengths, own, max_length=max_length, memory=memory
        )
        return y, _join_memory(own, memory)

    def _split_memory(self, state: DecodingState) -> tuple[DecodingState, Memory]:
        """The decoder's own state, and the sums over the source."""
        count = self.config.num_layers
        check_layers(state, 2 * count)
        return replace(state, layers=state.layers[:count]), cast(Memory, state.layers[count:])


def _join_memory(state: DecodingState, memory: Memory) -> DecodingState:
    return replace(state, layers=state.layers + memory)


def _no_source() -> ValueError:
    advice = "pass state=model.read(source)"
    return ValueError(expected("state", "one that has read a source", None, advice))


def _check_pair(encoder: TransformerConfig, decoder: TransformerConfig) -> None:
    """Refuses configurations that no encoder and decoder of it have."""
    instance("encoder", encoder, TransformerConfig)
    instance("decoder", decoder, TransformerConfig)
    for what, config, flag in (("encoder", encoder, False), ("decoder", decoder, True)):
        if not config.is_causal == config.cross_attention == flag:
            wanted = f"is_causal={flag} and cross_attention={flag}"
            got = f"is_causal={config.is_causal} and cross_attention={config.cross_attention}"
            raise ValueError(expected(f"the {what}", wanted, got))
    if encoder.embed_dim != decoder.embed_dim:
        wanted = f"the encoder's embed_dim {encoder.embed_dim}"
        raise ValueError(expected("the decoder", wanted, decoder.embed_dim))
