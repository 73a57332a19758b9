"""Models whose linear layers and LSTMs torch.ao.quantization replaced by int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from linattn_models import (
    AutoregressiveTransformer,
    CTCBiLSTM,
    CTCBiLSTMConfig,
    CTCTransformer,
    CTCTransformerConfig,
    MixtureOfLogistics,
    TransformerConfig,
    save,
)
from tests.models.tiny import seeded

LAYERS = TransformerConfig(num_layers=2, num_heads=2, head_dim=8, ffn_dim=16)
SPEECH = {"num_features": 6, "num_phones": 4}


def quantize(model: nn.Module) -> Any:
    kinds = {nn.Linear, nn.LSTM}
    return torch.ao.quantization.quantize_dynamic(model.eval(), kinds, dtype=torch.qint8)


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """The distance that rounding to 8 bits explains."""
    assert (got - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
class TestQuantized:
    @pytest.mark.parametrize(
        ("attention", "head"),
        [("linear", MixtureOfLogistics(3, 1, 9)), ("softmax", 9), ("lsh", 9)],
    )
    def test_token_models(self, attention: str, head: Any) -> None:
        torch.manual_seed(0)
        model = AutoregressiveTransformer(LAYERS.with_attention(attention), head, max_length=20)
        small, tokens = quantize(model), torch.arange(6)[None]
        assert_near(small.loss(tokens), model.loss(tokens))
        drawn = small.generate(2, length=20, generator=seeded())
        assert drawn.shape == (2, 20)
        if attention != "lsh":
            parameters, state = small.prefill(tokens)
            assert_near(parameters, model.prefill(tokens)[0])
            assert small.step(tokens[:, 0], state)[0].shape == parameters.shape

    def test_it_is_not_saved(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="quantized"):
            save(quantize(AutoregressiveTransformer(LAYERS, 9, max_length=20)), tmp_path)
        assert not any(tmp_path.iterdir())

    @pytest.mark.parametrize("kind", ["transformer", "bilstm"])
    def test_speech_models(self, kind: str) -> None:
        torch.manual_seed(0)
        config = TransformerConfig(1, 2, 8, 16, is_causal=False)
        model = (
            CTCTransformer(CTCTransformerConfig(transformer=config, **SPEECH))
            if kind == "transformer"
            else CTCBiLSTM(CTCBiLSTMConfig(hidden_dim=8, num_layers=2, **SPEECH))
        ).eval()
        frames, lengths = torch.randn(2, 12, 6, generator=seeded()), torch.tensor([12, 7])
        small = quantize(model)
        assert_near(small(frames).exp(), model(frames).exp())
        assert_near(small(frames, lengths).exp(), model(frames, lengths).exp())
