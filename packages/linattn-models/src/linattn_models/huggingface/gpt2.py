"""A converted GPT-2, whose steps a compiled decoder makes where it can be described."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.models.gpt2 import modeling_gpt2 as gpt2
from transformers.pytorch_utils import Conv1D

from linattn_core.decoder_spec import Affine, DecoderDescription, DecoderLayer, TokenCoding
from linattn_models import description
from linattn_models.huggingface.cache import CACHE, either_cache
from linattn_models.huggingface.converted import shape_of
from linattn_models.huggingface.stepping import (
    EPS,
    check_converted,
    common_map,
    compiled_logits,
    decay_logits,
    name_activation,
)


class GPT2LMHeadModel(gpt2.GPT2LMHeadModel):  # type: ignore[misc]
    """What `convert` makes of a GPT-2; its steps are compiled as those of a converted Llama."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        past_key_values: Any = None,
        **others: Any,
    ) -> Any:
        """As in transformers, which calls the cache past_key_values before 5.24."""
        cache = either_cache(cache, past_key_values)
        others.update(
            token_type_ids=token_type_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
        )
        inputs = (input_ids, attention_mask, position_ids)
        asked = (inputs_embeds, labels, logits_to_keep, others)
        logits = compiled_logits(self, describe_gpt2, cache, inputs, asked)
        if logits is not None:
            return CausalLMOutputWithCrossAttentions(logits=logits, **{CACHE: cache})
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            inputs_embeds=inputs_embeds, labels=labels, use_cache=use_cache,
            logits_to_keep=logits_to_keep, **{CACHE: cache}, **others,
        )  # fmt: skip


def describe_gpt2(model: GPT2LMHeadModel) -> DecoderDescription:
    """The model for a backend that compiles whole steps; refuses what it cannot express."""
    inner = model.transformer
    description.require(inner, gpt2.GPT2Model)
    table = description.embedding(inner.wte)
    described = tuple(_describe_layer(layer) for layer in inner.h)
    heads, kv_heads, head_dim = shape_of(inner.h[0].attn.attention)
    return DecoderDescription(
        layers=described,
        norm=description.norm(inner.ln_f),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        feature_map=common_map([layer.attn for layer in inner.h]),
        eps=EPS,
        activation=name_activation(
            model.config.activation_function, [layer.mlp.act for layer in inner.h]
        ),
        norm_first=True,
        rotary_base=None,
        tokens=TokenCoding(
            embeddings=(table,),
            start=table.new_zeros(table.shape[1]),
            positions=description.embedding(inner.wpe),
            output=description.affine(model.lm_head),
            sampler=None,
        ),
    )


def _describe_layer(layer: nn.Module) -> DecoderLayer:
    description.require(layer, gpt2.GPT2Block)
    block = cast(Any, layer)
    converted, mlp = check_converted(block.attn, gpt2.GPT2Attention), block.mlp
    description.require(mlp, gpt2.GPT2MLP)
    attention = cast(Any, converted.attention)
    qkv = _affine(attention.c_attn)
    return DecoderLayer(
        qkv=qkv,
        out=_affine(attention.c_proj),
        expand=_affine(mlp.c_fc),
        contract=_affine(mlp.c_proj),
        norm1=description.norm(block.ln_1),
        norm2=description.norm(block.ln_2),
        decay_logits=decay_logits(converted, qkv.weight),
    )


def _affine(layer: nn.Module) -> Affine:
    description.require(layer, Conv1D)
    weight = description.numbers(cast(Tensor, layer.weight), "a layer's weight")
    return Affine(weight, description.numbers(cast(Tensor, layer.bias), "a layer's bias"))
