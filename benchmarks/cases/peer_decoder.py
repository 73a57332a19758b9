"""The peer's recurrent encoder with our weights, in the leanest loop that decodes with it."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from linattn_models import AutoregressiveTransformer, Transformer

Memory = list[Any]


class PeerDecoder:
    """Decodes with the peer's layers; embedding, output layer, head and sampling are the model's.

    Args:
        builders: the peer's module of that name.
        model: one channel, linear attention by elu + 1, and post-norm, which is all the peer has.
    """

    def __init__(self, builders: types.ModuleType, model: AutoregressiveTransformer) -> None:
        config = model.config
        self.model = model
        self.encoder: nn.Module = builders.RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear",
            n_layers=config.num_layers,
            n_heads=config.num_heads,
            query_dimensions=config.head_dim,
            value_dimensions=config.head_dim,
            feed_forward_dimensions=config.ffn_dim,
            activation=config.activation,
            dropout=0.0,
        ).get()
        self.encoder.load_state_dict(peer_weights(model.transformer))
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


def peer_weights(transformer: Transformer) -> dict[str, Tensor]:
    """Returns the weights of our transformer under the peer's names."""
    theirs = _named("norm", transformer.get_submodule("norm"))
    for layer in range(transformer.config.num_layers):
        block, peer = transformer.get_submodule(f"blocks.{layer}"), f"layers.{layer}"
        joint = block.get_submodule("mixer.qkv")
        weights = joint.get_parameter("weight").chunk(3), joint.get_parameter("bias").chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), *weights, strict=True):
            projection = f"{peer}.attention.{name}_projection"
            theirs |= {f"{projection}.weight": weight, f"{projection}.bias": bias}
        theirs |= _named(f"{peer}.attention.out_projection", block.get_submodule("mixer.out"))
        for name, ours in (("linear1", "expand"), ("linear2", "contract")):
            theirs |= _named(f"{peer}.{name}", block.get_submodule(ours))
        for norm in ("norm1", "norm2"):
            theirs |= _named(f"{peer}.{norm}", block.get_submodule(norm))
    return theirs


def _named(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{part}": module.get_parameter(part) for part in ("weight", "bias")}
