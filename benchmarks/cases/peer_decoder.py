"""The peer's recurrent encoder with our weights, in the leanest loop that decodes with it."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from linattn_models import AutoregressiveTransformer, Transformer, TransformerConfig

PROJECTIONS = ("query", "key", "value")
# Our names of layers, and the peer's.
NAMES = {
    "mixer.out": "attention.out_projection", "expand": "linear1", "contract": "linear2",
    "norm1": "norm1", "norm2": "norm2",
}  # fmt: skip
State = tuple[int, Any]  # the next token's position, and the peer's memory


class PeerDecoder:
    """Decodes with the peer's layers; embedding, output layer, head and sampling are the model's.

    Args:
        builders: the peer's module of that name.
        model: one channel, linear attention by elu + 1, and post-norm, which is all the peer has.
    """

    def __init__(self, builders: types.ModuleType, model: AutoregressiveTransformer) -> None:
        self.model = model
        self.encoder: nn.Module = builders.RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear", **peer_options(model.config)
        ).get()
        self.encoder.load_state_dict(peer_weights(model.transformer))
        self.encoder.to(model.device).eval()

    def prefill(self, tokens: Tensor) -> tuple[Tensor, State]:
        """Takes no tokens yet, (B, 0); returns the parameters (B, P) of the first."""
        start = self.model.start
        assert start is not None
        return self._advance(start.expand(len(tokens), -1), (0, None))

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """Takes tokens (B,); returns the parameters (B, P) of the next ones."""
        return self._advance(self.model.embeddings[0](token), state)

    @torch.inference_mode()
    def generate(self, batch: int, generator: torch.Generator) -> Tensor:
        """Returns `batch` whole sequences of tokens, (B, N)."""
        parameters, state = self.prefill(torch.empty(batch, 0))
        tokens = [self.model.head.sample(parameters, generator=generator)]
        for _ in range(1, self.model.max_length):
            parameters, state = self.step(tokens[-1], state)
            tokens.append(self.model.head.sample(parameters, generator=generator))
        return torch.stack(tokens, 1)

    def _advance(self, vectors: Tensor, state: State) -> tuple[Tensor, State]:
        position, memory = state
        y, memory = self.encoder(self.model.positions.at(vectors, position), memory)
        return self.model.output(y), (position + 1, memory)


def peer_options(config: TransformerConfig) -> dict[str, Any]:
    """Returns the arguments of the peer's builders for a model of ours, but for the attention."""
    return {
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "query_dimensions": config.head_dim,
        "value_dimensions": config.head_dim,
        "feed_forward_dimensions": config.ffn_dim,
        "activation": config.ffn,
        "dropout": 0.0,
    }


def peer_weights(transformer: Transformer) -> dict[str, Tensor]:
    """Returns the weights of our transformer under the peer's names."""
    theirs: dict[str, Tensor] = {
        f"norm.{name}": weight for name, weight in transformer.norm.named_parameters()
    }
    for layer, block in enumerate(transformer.blocks):
        for name, weight in block.named_parameters():
            module, _, part = name.rpartition(".")
            if module == "mixer.qkv":
                for projection, chunk in zip(PROJECTIONS, weight.chunk(3), strict=True):
                    theirs[f"layers.{layer}.attention.{projection}_projection.{part}"] = chunk
            else:
                theirs[f"layers.{layer}.{NAMES[module]}.{part}"] = weight
    return theirs
