"""Initial weights: queries and keys are spread, the residual stream is bounded."""

from __future__ import annotations

import pytest
import torch

from linattn_models import Linear, Softmax, Transformer, TransformerConfig
from linattn_models.attention import Attention
from linattn_models.layers.block import Block


def stack(**fields: object) -> Transformer:
    config = {"num_layers": 8, "num_heads": 4, "head_dim": 32, "ffn_dim": 256, **fields}
    return Transformer(TransformerConfig(**config))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attention", "expected"), [(Linear(), 2.0), (Linear("favor"), 1.0), (Softmax(), 1.0)]
)
def test_queries_and_keys_start_with_the_mixers_spread(
    attention: Attention, expected: float
) -> None:
    block = stack(attention=attention).blocks[0]
    assert isinstance(block, Block)
    projected = block.mixer.qkv(torch.randn(2000, 128))[:, :256]
    assert projected.std().item() == pytest.approx(expected, rel=0.1)


def test_depth_does_not_blow_up_the_residual_stream(attention: str) -> None:
    spreads = []
    for layers in (1, 16):
        x = torch.zeros(4, 20, 128)
        for block in stack(num_layers=layers, attention=attention).blocks:
            x = block(x + 0.02 * torch.randn_like(x))
        spreads.append(x.std().item())
    assert spreads[1] < 2 * spreads[0]
