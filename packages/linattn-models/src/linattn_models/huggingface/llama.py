"""A converted Llama, whose steps a compiled decoder makes where it can be described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama import modeling_llama as llama

from linattn_core import LinearAttentionState
from linattn_core.decoder_spec import (
    Affine,
    CannotCompile,
    DecoderDescription,
    DecoderLayer,
    NativeDecoder,
    Norm,
    TokenCoding,
)
from linattn_core.errors import expected
from linattn_models import description
from linattn_models.decoding.compile import checksums_of, compile_native, settings_of
from linattn_models.huggingface.cache import StateLayer
from linattn_models.huggingface.converted import ConvertedAttention, shape_of
from linattn_models.huggingface.decays import log_decay
from linattn_models.huggingface.steps import Steps
from linattn_models.state import Cursor, zero_states

_EPS = 1e-6  # of `linear_attention`, whose default converted layers use
_TRIED, _TOLERANCE = 3, 1e-3


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
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> Any:
        """As in transformers."""
        if not torch.compiler.is_compiling():
            layers = _states_in(past_key_values, len(self.model.layers))
            inputs = (input_ids, attention_mask, position_ids)
            asked = (inputs_embeds, labels, logits_to_keep, others)
            if layers and input_ids is not None and input_ids.shape[1:] != (1,):
                layers[0].steps = Steps()  # a prompt: compares all weights again
            elif layers and _gives_logits_alone(self.config, *asked) and _fits(layers, *inputs):
                logits = _step(self, layers, cast(Tensor, input_ids), position_ids)
                if logits is not None:
                    return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, labels=labels,
            use_cache=use_cache, logits_to_keep=logits_to_keep, **others,
        )  # fmt: skip


def adopt(model: nn.Module) -> None:
    """Makes a converted Llama of transformers one whose steps may be compiled."""
    if type(model) is llama.LlamaForCausalLM:
        model.__class__ = LlamaForCausalLM


def describe_llama(model: LlamaForCausalLM) -> DecoderDescription:
    """The model for a backend that compiles whole steps; refuses what it cannot express."""
    inner = model.model
    description.require(inner, llama.LlamaModel)
    description.require(inner.rotary_emb, llama.LlamaRotaryEmbedding)
    if inner.rotary_emb.rope_type != "default":
        kind = inner.rotary_emb.rope_type
        raise CannotCompile(expected("rotary positions", "the default", kind, "decode eagerly"))
    table = description.embedding(inner.embed_tokens)
    described = [_describe_layer(layer) for layer in inner.layers]
    mapped = {layer.self_attn.feature_map.pointwise for layer in inner.layers}
    if len(mapped) != 1:
        raise CannotCompile(expected("feature maps", "the same in all layers", mapped))
    heads, kv_heads, head_dim = shape_of(inner.layers[0].self_attn.attention)
    return DecoderDescription(
        layers=tuple(described),
        norm=_norm(inner.norm),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        feature_map=mapped.pop(),
        eps=_EPS,
        activation=model.config.hidden_act,
        norm_first=True,
        rotary_base=model.config.rope_parameters["rope_theta"],
        tokens=TokenCoding(
            embeddings=(table,),
            start=table.new_zeros(table.shape[1]),
            positions=None,
            output=description.affine(model.lm_head),
            sampler=None,
        ),
    )


def _describe_layer(layer: nn.Module) -> DecoderLayer:
    description.require(layer, llama.LlamaDecoderLayer)
    block = cast(Any, layer)
    converted, mlp = block.self_attn, block.mlp
    description.require(converted, ConvertedAttention)
    description.require(converted.attention, llama.LlamaAttention)
    description.require(mlp, llama.LlamaMLP)
    if converted.window_size or converted.feature_map.pointwise is None or converted.teaching:
        wanted = "a map of each number alone, no window and no teaching"
        raise CannotCompile(expected("a converted layer", wanted, "another", "decode eagerly"))
    attention = converted.attention
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
        decay_logits=_decay_logits(converted, qkv.weight),
    )


def _norm(layer: nn.Module) -> Norm:
    description.require(layer, llama.LlamaRMSNorm)
    norm = cast(Any, layer)
    weight = description.numbers(norm.weight, "a norm's weight")
    return Norm(weight, None, norm.variance_epsilon, centered=False)


def _decay_logits(layer: ConvertedAttention, like: Tensor) -> Tensor | None:
    logarithms = log_decay(layer.decay, shape_of(layer.attention)[1], like.double())
    if logarithms is None:
        return None
    return (logarithms - (-torch.expm1(logarithms)).log()).to(like.dtype)


@dataclass(frozen=True)
class _Packed:
    """A decoder, and what it was packed from."""

    native: NativeDecoder
    settings: tuple[Any, ...]
    checksums: Tensor
    longest: None = None


# Not an attribute of the models, so that copies, pickles and state dicts do not contain it.
_cache: WeakKeyDictionary[nn.Module, _Packed] = WeakKeyDictionary()


def _find(model: LlamaForCausalLM, pack: bool) -> _Packed | None:
    """The decoder of the model as it is now; None if there is none and none is to be packed."""
    packed = _cache.get(model)
    if packed is None and not pack:
        return None
    described = describe_llama(model)
    settings = described.device, *settings_of(described)
    checksums = checksums_of(described)
    same = packed is not None and packed.settings == settings
    if packed is not None and same and torch.equal(packed.checksums, checksums):
        return packed
    if not pack:
        return None
    _cache.pop(model, None)
    native = compile_native(described)
    _compare(model, described, native)
    _cache[model] = _Packed(native, settings, checksums)
    return _cache[model]


def _compare(model: LlamaForCausalLM, described: DecoderDescription, native: NativeDecoder) -> None:
    """Refuses a decoder whose logits of a few tokens are not those of the model."""
    tokens = torch.arange(_TRIED, device=model.device) % model.config.vocab_size
    wanted = model(input_ids=tokens[None], use_cache=False).logits[0]
    sizes = len(described.layers), 1, described.num_kv_heads, described.head_dim
    states = zero_states(*sizes, model.device)
    steps = enumerate(tokens.split(1))
    got = torch.cat([native.step(x, place, states, None)[0] for place, x in steps])
    error = (got - wanted).norm() / wanted.norm()
    if not error <= _TOLERANCE:
        what = "logits that differ from the model's"
        raise CannotCompile(expected(what, f"at most {_TOLERANCE:g}", f"{float(error):g}"))


def _states_in(cache: Any, count: int) -> Sequence[StateLayer]:
    """The layers of a cache with one state for each layer of the model; else none."""
    layers: Sequence[Any] = getattr(cache, "layers", ())
    for layer in layers:
        if not isinstance(layer, StateLayer) or not isinstance(layer.state, LinearAttentionState):
            return ()
    return layers if len(layers) == count else ()


def _gives_logits_alone(
    config: Any, vectors: object, labels: object, keep: object, others: dict[str, Any]
) -> bool:
    """Whether a forward is asked for logits, in the usual class, and for nothing else."""
    if not (vectors is None and labels is None and isinstance(keep, int) and 0 <= keep <= 1):
        return False
    for name, value in others.items():
        if value is not None and (name != "return_dict" or value is not True):
            return False
    return not (config.output_attentions or config.output_hidden_states or not config.return_dict)


def _fits(
    layers: Sequence[StateLayer], ids: Tensor | None, mask: Tensor | None, places: Tensor | None
) -> bool:
    """Whether the inputs are one token for each row of the states, without padding."""
    rows = cast(LinearAttentionState, layers[0].state).s.shape[0]
    ready = layers[0].ready
    return (
        ids is not None
        and ids.dtype == torch.int64
        and ids.shape == (rows, 1)
        and (places is None or places.shape in ((rows, 1), (1, 1)))
        and (mask is None or mask.shape == (rows, layers[0].seen + 1))
        and (mask is None or bool(mask[:, -1].all()))
        and (ready is None or bool(ready.all()))
    )


def _step(
    model: LlamaForCausalLM, layers: Sequence[StateLayer], ids: Tensor, places: Tensor | None
) -> Tensor | None:
    """The logits (B, 1, V) of a compiled step, which updates the states; None without a decoder."""
    seen = layers[0].seen
    cursor = Cursor(seen, seen)
    if places is not None:
        cursor = Cursor.at(places[:, 0].expand(len(ids)).contiguous())
    packed = layers[0].steps.choose(model, cursor.furthest, lambda pack: _find(model, pack))
    if packed is None:
        return None
    states = tuple(cast(LinearAttentionState, layer.state) for layer in layers)
    logits, _ = packed.native.step(ids[:, 0], cursor.position, states, None)
    for layer in layers:
        layer.seen, layer.ready = layer.seen + 1, None
    return cast(Tensor, logits.unsqueeze(1))
