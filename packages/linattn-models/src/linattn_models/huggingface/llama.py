"""A converted Llama, whose steps a compiled decoder makes where it can be described."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama import modeling_llama as llama

from linattn_core.decoder_spec import (
    Affine,
    CannotCompile,
    DecoderDescription,
    DecoderLayer,
    Norm,
    TokenCoding,
)
from linattn_core.errors import expected
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

_ROUNDING = 4e-7  # of a frequency, between devices


class LlamaForCausalLM(llama.LlamaForCausalLM):  # type: ignore[misc]
    """What `convert` makes of a Llama. It keeps its name, which config.json has.

    A step from a cache is compiled, as that of a `LinattnForCausalLM`, where the model has no
    window, the feature map "elu", "relu" or "identity", and the default rotary positions.
    """

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        past_key_values: Any = None,
        **others: Any,
    ) -> Any:
        """As in transformers, which calls the cache past_key_values before 5.24."""
        cache = either_cache(cache, past_key_values)
        inputs = (input_ids, attention_mask, position_ids)
        asked = (inputs_embeds, labels, logits_to_keep, others)
        logits = compiled_logits(self, describe_llama, cache, inputs, asked)
        if logits is not None:
            return CausalLMOutputWithPast(logits=logits, **{CACHE: cache})
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            inputs_embeds=inputs_embeds, labels=labels, use_cache=use_cache,
            logits_to_keep=logits_to_keep, **{CACHE: cache}, **others,
        )  # fmt: skip


def describe_llama(model: LlamaForCausalLM) -> DecoderDescription:
    """The model for a backend that compiles whole steps; refuses what it cannot express."""
    inner = model.model
    description.require(inner, llama.LlamaModel)
    table = description.embedding(inner.embed_tokens)
    described = tuple(_describe_layer(layer) for layer in inner.layers)
    heads, kv_heads, head_dim = shape_of(inner.layers[0].self_attn.attention)
    return DecoderDescription(
        layers=described,
        norm=_norm(inner.norm),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        feature_map=common_map([layer.self_attn for layer in inner.layers]),
        eps=EPS,
        activation=name_activation(
            model.config.hidden_act, [layer.mlp.act_fn for layer in inner.layers]
        ),
        norm_first=True,
        rotary_base=_rotary_base(inner.rotary_emb, model.config, head_dim),
        tokens=TokenCoding(
            embeddings=(table,),
            start=table.new_zeros(table.shape[1]),
            positions=None,
            output=description.affine(model.lm_head),
            sampler=None,
        ),
    )


def _rotary_base(layer: nn.Module, config: Any, head_dim: int) -> float:
    """The base of the rotary positions, if they are the default; the layer's buffer decides."""
    description.require(layer, llama.LlamaRotaryEmbedding)
    rotary, base = cast(Any, layer), float(config.rope_parameters["rope_theta"])
    exponents = torch.arange(0, head_dim, 2, device=rotary.inv_freq.device).float() / head_dim
    wanted = 1.0 / base**exponents  # in float32, as transformers computes them
    default = rotary.rope_type == "default" and rotary.attention_scaling == 1.0
    # Frequencies that were cast to half precision once differ, and with them all late positions.
    default = default and rotary.inv_freq.dtype == torch.float32
    if not (default and torch.allclose(rotary.inv_freq, wanted, rtol=_ROUNDING, atol=0)):
        got = f"{rotary.rope_type!r} with other frequencies or another scale"
        raise CannotCompile(expected("rotary positions", "the default", got, "decode eagerly"))
    return base


def _describe_layer(layer: nn.Module) -> DecoderLayer:
    description.require(layer, llama.LlamaDecoderLayer)
    block = cast(Any, layer)
    converted, mlp = check_converted(block.self_attn, llama.LlamaAttention), block.mlp
    description.require(mlp, llama.LlamaMLP)
    attention = cast(Any, converted.attention)
    parts = [description.affine(x) for x in (attention.q_proj, attention.k_proj, attention.v_proj)]
    biases = [x.bias for x in parts if x.bias is not None]
    qkv = Affine(torch.cat([x.weight for x in parts], 1), torch.cat(biases) if biases else None)
    return DecoderLayer(
        qkv=qkv,
        out=description.affine(attention.o_proj),
        expand=description.affine(mlp.up_proj),
        contract=description.affine(mlp.down_proj),
        norm1=_norm(block.input_layernorm),
        norm2=_norm(block.post_attention_layernorm),
        gate=description.affine(mlp.gate_proj),
        decay_logits=decay_logits(converted, qkv.weight),
    )


def _norm(layer: nn.Module) -> Norm:
    description.require(layer, llama.LlamaRMSNorm)
    norm = cast(Any, layer)
    weight = description.numbers(norm.weight, "a norm's weight")
    return Norm(weight, None, norm.variance_epsilon, centered=False)
