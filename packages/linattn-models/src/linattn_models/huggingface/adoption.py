"""Which converted models have compiled steps."""

from __future__ import annotations

from torch import nn
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama

from linattn_models.huggingface.gpt2 import GPT2LMHeadModel
from linattn_models.huggingface.llama import LlamaForCausalLM

_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    modeling_gpt2.GPT2LMHeadModel: GPT2LMHeadModel,
    modeling_llama.LlamaForCausalLM: LlamaForCausalLM,
}


def adopt(model: nn.Module) -> None:
    """Makes a converted model of transformers one whose steps may be compiled."""
    compiled = _CLASSES.get(type(model))
    if compiled is not None:
        model.__class__ = compiled
