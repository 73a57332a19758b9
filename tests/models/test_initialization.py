"""Where learning starts: queries and keys spread out, the residual stream bounded."""

from __future__ import annotations

import pytest
import torch

from linattn_models import Transformer, TransformerConfig
from linattn_models.transformer import Block


def stack(**fields: object) -> Transformer:
    config = {"num_layers": 8, "num_heads": 4, "head_dim": 32, "ffn_dim": 256, **fields}
    return Transformer(TransformerConfig.from_dict(config))


@pytest.mark.parametrize(
    ("attention", "feature_map", "expected"),
    [("linear", "elu", 2.0), ("linear", "favor", 1.0), ("softmax", "elu", 1.0)],
)
def test_queries_and_keys_start_with_the_mixers_spread(
    attention: str, feature_map: str, expected: float
) -> None:
    block = stack(attention=attention, feature_map=feature_map).blocks[0]
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
