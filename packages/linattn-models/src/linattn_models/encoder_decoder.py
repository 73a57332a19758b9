"""An encoder, and a decoder that attends to the encoder's outputs through sums computed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.config import TransformerConfig
from linattn_models.sharded import needs_whole
from linattn_models.state import DecodingState
from linattn_models.transformer import Memory, Transformer
from linattn_models.validation import exact_keys, instance


class EncoderDecoder(nn.Module):
    """Vectors of a source and of a target in, vectors of the target out.

    The encoder sees the whole source. Each block of the decoder attends to the target so far and,
    by linear attention, to the encoder's outputs, of which only sums are kept. Both are linear
    attention, so a step costs the same for all lengths of source and target.

    Args:
        encoder: a configuration that is not causal.
        decoder: a causal configuration with `cross_attention=True`, of the same embed_dim.

    Attributes:
        encoder, decoder: each a `Transformer`.

    Raises:
        ValueError: configurations that do not fit.
    """

    def __init__(self, encoder: TransformerConfig, decoder: TransformerConfig) -> None:
        super().__init__()
        check_pair(encoder, decoder)
        self.encoder = Transformer(encoder)
        self.decoder = Transformer(decoder)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        """All positions of the target at once.

        Args:
            source: (B, L, E).
            target: (B, N, E); position i of the result sees targets 0 to i.
            source_lengths, target_lengths: (B,) int; positions at or past them are padding.

        Returns:
            (B, N, E).

        Raises:
            ValueError: another shape, or lengths out of range.
        """
        memory = self.remember(source, source_lengths)
        return cast(Tensor, self.decoder(target, target_lengths, memory))

    @needs_whole
    def remember(self, source: Tensor, lengths: Tensor | None = None) -> Memory:
        """Encodes a source (B, L, E); returns the sums that each block of the decoder reads."""
        return self.decoder.remember(self.encoder(source, lengths), lengths)

    @needs_whole
    def prefill(
        self,
        target: Tensor,
        memory: Memory,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """As `Transformer.prefill` of the decoder, which reads `memory`."""
        return self.decoder.prefill(target, lengths, state, max_length=max_length, memory=memory)

    @needs_whole
    def step(self, x: Tensor, state: DecodingState, memory: Memory) -> tuple[Tensor, DecodingState]:
        """As `Transformer.step` of the decoder, which reads `memory`: (B, E) -> (B, E)."""
        return self.decoder.step(x, state, memory)

    def to_dict(self) -> dict[str, Any]:
        """The settings from which `from_dict` builds the model, without weights, as JSON values."""
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: part.config.to_dict() for name, part in parts.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EncoderDecoder:
        """A model with the settings that `to_dict` returned, with newly drawn weights."""
        keys = ("encoder", "decoder")
        values = exact_keys("the description of an EncoderDecoder", values, keys)
        return cls(*(TransformerConfig.from_dict(values[key]) for key in keys))


def check_pair(encoder: TransformerConfig, decoder: TransformerConfig) -> None:
    """Refuses configurations that no encoder and decoder of it have."""
    instance("encoder", encoder, TransformerConfig)
    instance("decoder", decoder, TransformerConfig)
    if encoder.is_causal or encoder.cross_attention:
        got = f"is_causal={encoder.is_causal}, cross_attention={encoder.cross_attention}"
        wanted = "is_causal=False and cross_attention=False"
        raise ValueError(expected("the encoder", wanted, got))
    if not (decoder.is_causal and decoder.cross_attention):
        got = f"is_causal={decoder.is_causal}, cross_attention={decoder.cross_attention}"
        wanted = "is_causal=True and cross_attention=True"
        raise ValueError(expected("the decoder", wanted, got))
    if encoder.embed_dim != decoder.embed_dim:
        wanted = f"the encoder's embed_dim {encoder.embed_dim}"
        raise ValueError(expected("the decoder", wanted, decoder.embed_dim))
