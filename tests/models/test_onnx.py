"""A whole model exported to ONNX from a short example runs on any length."""

from __future__ import annotations

from dataclasses import replace

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


class Prefill(Tokens):
    """The model reads a prompt, and leaves a state."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.prefill(tokens)[0]


def test_a_state_with_a_window_is_refused() -> None:
    module = Prefill(TransformerConfig(1, 2, 8, 16, attention=Linear(window_size=5)))
    with pytest.raises(Exception, match="whole sequences"):
        Session(module, {"tokens": torch.zeros(2, 9).long()}, tokens={0: ANY, 1: ANY})


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


LANGUAGE = TransformerConfig.language(2, 4, 8, num_kv_heads=2)
RECIPES = {
    "window and decay": replace(LANGUAGE, attention=Linear(window_size=5, decay="gated")),
    "learned map": replace(LANGUAGE, attention=Linear("hedgehog", window_size=70)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_language_model_generates_the_same(name: str) -> None:
    torch.manual_seed(0)
    model = AutoregressiveTransformer(RECIPES[name], 7, 1000, "rotary").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) / 10)
    module = Tokens()
    module.model = model
    session = Session(module, {"tokens": torch.zeros(2, 3).long()}, tokens={0: ANY, 1: ANY})
    for length in (1, 4, 5, 6, 63, 64, 65, 150, 1000):
        assert_same(session, module, {"tokens": torch.randint(7, (3, length))})
    tokens = torch.zeros(1, 1, dtype=torch.int64)  # the last is read for its place alone
    for _ in range(20):
        (logits,) = session(tokens=tokens)
        tokens[0, -1] = logits[0, -1].argmax()
        tokens = torch.nn.functional.pad(tokens, (0, 1))
    assert torch.equal(tokens[:, :-1], model.generate(1, length=20, temperature=0))
