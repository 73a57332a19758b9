"""The peer's recurrent encoder with our weights, in the leanest loop that decodes with it."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from linattn_models import AutoregressiveTransformer, TransformerConfig

Memory = list[Any]


class PeerDecoder:
    """Decodes with the peer's layers; embedding, output layer, head and sampling are the model's.

    Args:
        library: what `peers.fast_transformers` returned.
        model: one channel, linear attention by elu + 1, and post-norm, which is all the peer has.
    """

    def __init__(self, library: types.SimpleNamespace, model: AutoregressiveTransformer) -> None:
        config = model.config
        self.model = model
        self.encoder: nn.Module = library.RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear",
            n_layers=config.num_layers,
            n_heads=config.num_heads,
            query_dimensions=config.head_dim,
            value_dimensions=config.head_dim,
            feed_forward_dimensions=config.ffn_dim,
            activation=config.activation,
            dropout=0.0,
        ).get()
        self.encoder.load_state_dict(peer_weights(config, model.transformer.state_dict()))
        self.encoder.eval()

    def begin(self, batch: int) -> tuple[Tensor, Memory]:
        """Returns the parameters (B, P) of the first token, and the memory after the start."""
        start = self.model.start.expand(batch, -1) + self.model.positions.at(0)
        return self._advance(start, None)

    def step(self, token: Tensor, position: int, memory: Memory) -> tuple[Tensor, Memory]:
        """Takes the token (B,) of `position - 1`; returns the parameters (B, P) of the next."""
        return self._advance(
            self.model.embeddings[0](token) + self.model.positions.at(position), memory
        )

    @torch.inference_mode()
    def generate(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """Returns `batch` sequences of `length` tokens, (B, length)."""
        parameters, memory = self.begin(batch)
        tokens = [self.model.head.sample(parameters, generator=generator)]
        for position in range(1, length):
            parameters, memory = self.step(tokens[-1], position, memory)
            tokens.append(self.model.head.sample(parameters, generator=generator))
        return torch.stack(tokens, 1)

    def _advance(self, vectors: Tensor, memory: Memory | None) -> tuple[Tensor, Memory]:
        y, memory = self.encoder(vectors, memory)
        return self.model.output(y), memory


def peer_weights(config: TransformerConfig, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights of our transformer under the peer's names."""
    theirs = {f"norm.{part}": ours[f"norm.{part}"] for part in ("weight", "bias")}
    for layer in range(config.num_layers):
        for part in ("weight", "bias"):
            block, peer = f"blocks.{layer}", f"layers.{layer}"
            query, key, value = ours[f"{block}.mixer.qkv.{part}"].chunk(3)
            theirs |= {
                f"{peer}.attention.query_projection.{part}": query,
                f"{peer}.attention.key_projection.{part}": key,
                f"{peer}.attention.value_projection.{part}": value,
                f"{peer}.attention.out_projection.{part}": ours[f"{block}.mixer.out.{part}"],
                f"{peer}.linear1.{part}": ours[f"{block}.expand.{part}"],
                f"{peer}.linear2.{part}": ours[f"{block}.contract.{part}"],
                f"{peer}.norm1.{part}": ours[f"{block}.norm1.{part}"],
                f"{peer}.norm2.{part}": ours[f"{block}.norm2.{part}"],
            }
    return theirs
