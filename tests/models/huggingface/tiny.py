"""Models of transformers small enough to run many times, with random weights, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from linattn_models.huggingface import ConvertedAttention

VOCABULARY = 17
# What generation asks for: no token ends a sequence, and padding has a token of its own.
_TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}

# Caches of transformers beside the usual one, by the names that `generate` takes.
OTHER_CACHES = [
    "static",
    pytest.param(
        "offloaded",
        marks=pytest.mark.skipif(
            torch.backends.cuda.is_built() and not torch.cuda.is_available(),
            reason="a CUDA build of torch has no stream to offload by without a GPU",
        ),
    ),
]


def gpt2(**fields: Any) -> PreTrainedModel:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = GPT2Config(**{"vocab_size": VOCABULARY, **sizes, **dropout, **_TOKENS, **fields})
    return ready(GPT2LMHeadModel, config)


def llama(**fields: Any) -> PreTrainedModel:
    config = LlamaConfig(**{**_small_llama(), **fields})
    return ready(LlamaForCausalLM, config)


def _small_llama() -> dict[str, Any]:
    """Four heads of queries, two of keys."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
    return {"vocab_size": VOCABULARY, **heads, **sizes, **_TOKENS}


def mistral() -> PreTrainedModel:
    return ready(MistralForCausalLM, MistralConfig(**_small_llama(), sliding_window=None))


def qwen2() -> PreTrainedModel:
    """With biases of queries, keys and values that are not 0."""
    model = ready(Qwen2ForCausalLM, Qwen2Config(**_small_llama()))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 3)
    return model


def bert(**fields: Any) -> PreTrainedModel:
    heads = {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 16, "max_position_embeddings": 64}
    config = BertConfig(**{"vocab_size": VOCABULARY, **heads, **dropout, **sizes, **fields})
    return ready(BertForMaskedLM, config)


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert}
DECODERS = {"gpt2": gpt2, "llama": llama}


def sliding() -> MistralConfig:
    return MistralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, sliding_window=3, head_dim=8,
    )  # fmt: skip


def bart() -> BartConfig:
    return BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, max_position_embeddings=64,
    )  # fmt: skip


def layers(model: nn.Module) -> list[ConvertedAttention]:
    return [module for module in model.modules() if isinstance(module, ConvertedAttention)]


def ready(cls: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """Float64 and larger weights than usual, so that what a layer sees shows in the outputs."""
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation=config._attn_implementation)
    return enlarge(model, 10).double().eval()


def enlarge(model: Any, factor: float) -> Any:
    """The model with larger matrices, so that each token depends on those before it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(factor)
    return model


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, length), generator=generator)


def padded(rows: list[Tensor], side: str) -> dict[str, Tensor]:
    """The rows (length,) in one batch: input_ids, attention_mask and position_ids."""
    longest = max(len(row) for row in rows)
    batch = {
        name: torch.zeros(len(rows), longest, dtype=torch.int64)
        for name in ("input_ids", "attention_mask", "position_ids")
    }
    for index, row in enumerate(rows):
        part = real(row, longest, side)
        batch["input_ids"][index, part] = row
        batch["attention_mask"][index, part] = 1
        batch["position_ids"][index, part] = torch.arange(len(row))
    return batch


def prompts(rows: list[Tensor], side: str = "left") -> dict[str, Tensor]:
    """As `padded`, without the positions."""
    return {name: x for name, x in padded(rows, side).items() if name != "position_ids"}


def real(row: Tensor, longest: int, side: str) -> slice:
    """The places of a row that hold its tokens."""
    return slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)


ROWS = [torch.tensor(row) for row in ([1, 2, 3, 4, 0, 1], [3], [2, 2, 4])]
LEFT = prompts(ROWS)
