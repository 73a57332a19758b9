"""A whole model exported to ONNX from a short example runs on any length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from linattn_models import AutoregressiveTransformer, Linear, Transformer, TransformerConfig
from tests.core.test_onnx import ANY, Session, assert_same, pytestmark  # noqa: F401


class Tokens(nn.Module):
    """The model, by the name of its argument."""

    def __init__(self, config: TransformerConfig | None = None) -> None:
        super().__init__()
        self.model = AutoregressiveTransformer(config or TransformerConfig(2, 2, 8, 16), 7, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)


@pytest.mark.parametrize("example", [1, 2])
def test_a_causal_model_from_a_short_example(example: int) -> None:
    module = Tokens()
    session = Session(module, {"tokens": torch.zeros(2, example).long()}, tokens={0: ANY, 1: ANY})
    for length in (1, 63, 64, 65, 150, 1000):
        assert_same(session, module, {"tokens": torch.randint(7, (3, length))})


class Vectors(nn.Module):
    """A model that is not causal, by the names of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(TransformerConfig(2, 2, 8, 16, num_kv_heads=1, is_causal=False))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.model(x, lengths)


@pytest.mark.parametrize("example", [1, 64])
def test_a_model_that_is_not_causal_from_a_short_example(example: int) -> None:
    module = Vectors()

    def arguments(batch: int, length: int) -> dict[str, Tensor]:
        lengths = torch.randint(1, length + 1, (batch,))
        return {"x": torch.randn(batch, length, 16), "lengths": lengths}

    session = Session(module, arguments(2, example), x={0: ANY, 1: ANY})
    for length in (1, 63, 64, 65, 150, 1000):
        assert_same(session, module, arguments(3, length))


def test_a_window_is_refused() -> None:
    module = Tokens(TransformerConfig(1, 2, 8, 16, attention=Linear(window_size=5)))
    with pytest.raises(Exception, match="window_size=5"):
        Session(module, {"tokens": torch.zeros(2, 9).long()}, tokens={0: ANY, 1: ANY})
