"""torch.jit.trace, which TensorBoard's `add_graph` calls, records every model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from linattn_models import (
    CTCBiLSTM,
    CTCBiLSTMConfig,
    CTCTransformer,
    CTCTransformerConfig,
    Seq2SeqTransformer,
)
from tests.models.tiny import ATTENTIONS, tiny_config, tiny_model, tiny_transformer

ENCODER, DECODER = tiny_config(is_causal=False), tiny_config(cross_attention=True)
LINEAR = {"feature_map": "hedgehog", "decay": "learned", "num_kv_heads": 1}
RECOGNIZER = CTCTransformerConfig(4, transformer=ENCODER, num_features=6, channels=3)


def vectors(dim: int = 8) -> Tensor:
    return torch.randn(2, 16, dim)


def tokens() -> Tensor:
    return torch.randint(7, (2, 9))


MODELS: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    **{x: (tiny_transformer(x), (vectors(),)) for x in (*ATTENTIONS, "lsh")},
    "rotary": (tiny_transformer(rotary=True), (vectors(),)),
    "window": (tiny_transformer("windowed", rotary=True, decay="gated"), (vectors(),)),
    "blocks": (tiny_transformer(causal_block=4), (vectors(),)),
    "options": (tiny_transformer(**LINEAR), (vectors(),)),
    "tokens": (tiny_model(), (tokens(),)),
    "seq2seq": (Seq2SeqTransformer(ENCODER, DECODER, 7, 7, 9), (tokens(), tokens())),
    "ctc": (CTCTransformer(RECOGNIZER), (vectors(6),)),
    "bilstm": (CTCBiLSTM(CTCBiLSTMConfig(4, num_features=6, hidden_dim=5)), (vectors(6),)),
}


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace is deprecated, and tells of constants
@pytest.mark.parametrize("name", MODELS)
def test_a_traced_model_computes_the_same(name: str) -> None:
    """The trace is checked by torch too, which repeats it without gradients."""
    model, example = MODELS[name]
    traced = torch.jit.trace(model.float().eval(), example)
    others = tuple(x.flip(0) for x in example)
    torch.testing.assert_close(traced(*others), model(*others))
