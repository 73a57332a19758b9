"""A causal language model of transformers as a model of ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from linattn_core import feature_map_names
from linattn_core.errors import expected, quote
from linattn_core.feature_maps import Hedgehog
from linattn_core.feature_maps.registry import shared_feature_map
from linattn_models.attention import Attention, Linear, Softmax
from linattn_models.basics.modes import evaluating
from linattn_models.basics.validation import instance
from linattn_models.huggingface.converted import ConvertedAttention, shape_of
from linattn_models.huggingface.decays import log_decay
from linattn_models.huggingface.interface import registered
from linattn_models.layers.config import TransformerConfig
from linattn_models.tokens.autoregressive import AutoregressiveTransformer

Tensors: TypeAlias = dict[str, Tensor]

_SOFTMAX = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
# Names in transformers and in a `TransformerConfig`.
_ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu",
}  # fmt: skip
_LLAMA3 = {
    "factor": "factor", "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_length",
}  # fmt: skip
_TRIED, _TOLERANCE = 8, 1e-3


class _Parts(NamedTuple):
    """What a model consists of, by the names of our model.

    Attributes:
        settings: of the `TransformerConfig`, without sizes and attention.
        layers: the modules of each layer, of which `qkv` is one or three.
        attention: the attention of each layer, as it is in the model.
        positions: the table of learned positions; None for rotary ones.
    """

    settings: dict[str, Any]
    layers: list[dict[str, Any]]
    attention: list[nn.Module]
    embedding: nn.Module
    positions: nn.Module | None
    norm: nn.Module
    output: nn.Module


def from_transformers(model: nn.Module) -> AutoregressiveTransformer:
    """An `AutoregressiveTransformer` with the weights of a causal language model of transformers.

    The model has softmax attention, was converted by `convert`, or runs with a name of `register`.
    The result computes the same, in the same dtype, on the same device, without dropout. It has no
    start vector: a prompt is all tokens that the model of transformers would get, a first special
    token included, which our models do not put before a text. All that our models do works with it:
    `generate`, `beam_search`, states, `compile_decoder`, `ContinuousBatch`, `save`, the server. Its
    `tokenizer` is for you to set.

    Args:
        model: a `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM` or `GPT2LMHeadModel`.
            Its weights are copied.

    Raises:
        TypeError: another class.
        ValueError: what our model cannot express: sliding windows, rotary positions that are scaled
            other than by Llama 3's rule, other activations, scales and sizes of heads, adapters and
            quantized layers; or logits that differ from the model's.

    Cost: a copy of the weights; both models read a few tokens more than a window has.
    """
    kinds = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, GPT2LMHeadModel)
    advice = "merge_and_unload() its adapters first" if hasattr(model, "peft_config") else ""
    instance("model", model, *kinds, advice=advice)
    if any(weight.is_meta for weight in model.parameters()):
        advice = "load the model without offloading its weights (device_map)"
        raise ValueError(expected("model", "weights on a device", "offloaded weights", advice))
    parts = _read_gpt2(model) if isinstance(model, GPT2LMHeadModel) else _read_llama(model)
    translated = _build(cast(Any, model).config, parts).train(model.training)
    _compare(model, translated)
    return translated


def _read_llama(model: Any) -> _Parts:
    """Of a Llama, a Mistral or a Qwen2."""
    config, inner = model.config, model.model
    if config.hidden_act != "silu":
        raise _cannot("hidden_act", "'silu'", config.hidden_act)
    if getattr(config, "sliding_window", None) is not None:
        raise _cannot("sliding_window", None, config.sliding_window)
    layers, attention = [], []
    for layer in inner.layers:
        heads, mlp = _unwrapped(layer.self_attn), layer.mlp
        attention.append(layer.self_attn)
        layers.append({
            "mixer.qkv": (heads.q_proj, heads.k_proj, heads.v_proj),
            "mixer.out": heads.o_proj,
            "gate": mlp.gate_proj,
            "expand": mlp.up_proj,
            "contract": mlp.down_proj,
            "norm1": layer.input_layernorm,
            "norm2": layer.post_attention_layernorm,
        })  # fmt: skip
    settings = {
        "ffn_dim": config.intermediate_size, "ffn": "swiglu", "norm": "rms",
        "norm_eps": config.rms_norm_eps, "rotary": True, **_read_rotary(config),
    }  # fmt: skip
    return _Parts(settings, layers, attention, inner.embed_tokens, None, inner.norm, model.lm_head)


def _read_rotary(config: Any) -> dict[str, Any]:
    """The base and the scaling of rotary positions."""
    rope = dict(config.rope_parameters)
    kind, base = rope.pop("rope_type", "default"), float(rope.pop("rope_theta"))
    if rope.pop("partial_rotary_factor", 1.0) != 1.0:
        raise _cannot("rope_parameters", "angles for all numbers of a head", "a part of them")
    if kind == "default":
        return {"rotary_base": base}
    if kind != "llama3":
        raise _cannot("rope_parameters", "rope_type 'default' or 'llama3'", quote(kind))
    scaling = {ours: rope[theirs] for theirs, ours in _LLAMA3.items()}
    return {"rotary_base": base, "rotary_scaling": scaling}


def _read_gpt2(model: Any) -> _Parts:
    config, inner = model.config, model.transformer
    if config.activation_function not in _ACTIVATIONS:
        wanted = f"one of {', '.join(_ACTIVATIONS)}"
        raise _cannot("activation_function", wanted, config.activation_function)
    if config.add_cross_attention:
        raise _cannot("add_cross_attention", False, True)
    layers, attention = [], []
    for block in inner.h:
        heads = _unwrapped(block.attn)
        attention.append(block.attn)
        layers.append({
            "mixer.qkv": (heads.c_attn,),
            "mixer.out": heads.c_proj,
            "expand": block.mlp.c_fc,
            "contract": block.mlp.c_proj,
            "norm1": block.ln_1,
            "norm2": block.ln_2,
        })  # fmt: skip
    settings = {
        "ffn_dim": config.n_inner or 4 * config.hidden_size,
        "ffn": _ACTIVATIONS[config.activation_function],
        "norm_eps": config.layer_norm_epsilon,
    }
    return _Parts(settings, layers, attention, inner.wte, inner.wpe, inner.ln_f, model.lm_head)


def _build(config: Any, parts: _Parts) -> AutoregressiveTransformer:
    """Our model with the weights of the parts."""
    heads, kv_heads, head_dim = shape_of(_unwrapped(parts.attention[0]))
    if heads * head_dim != config.hidden_size:
        wanted = f"hidden_size / num_attention_heads = {config.hidden_size / heads:g}"
        raise _cannot("head_dim", wanted, head_dim)
    kinds = [_read_attention(layer) for layer in parts.attention]
    if len({kind for kind, _ in kinds}) != 1:
        raise _cannot("the attention of the layers", "the same in all", "different ones")
    biased = {name for layer in parts.layers for name in _biased(layer)}
    table = cast(Any, parts.embedding).weight
    layers = TransformerConfig(
        num_layers=len(parts.layers), num_heads=heads, head_dim=head_dim, num_kv_heads=kv_heads,
        attention=kinds[0][0], bias=bool(biased - {"mixer.qkv"}), qkv_bias="mixer.qkv" in biased,
        tie_embeddings=cast(Any, parts.output).weight is table, **parts.settings,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoregressiveTransformer(
            layers, len(table), config.max_position_embeddings,
            "rotary" if parts.positions is None else "learned", start=False,
        )  # fmt: skip
    tensors: Tensors = {"embeddings.0.weight": table}
    if parts.positions is not None:
        tensors["positions.table"] = cast(Any, parts.positions).weight
    for index, (layer, (_, own)) in enumerate(zip(parts.layers, kinds, strict=True)):
        prefix = f"transformer.blocks.{index}."
        for name, module in layer.items():
            tensors |= _named(prefix + name, module)
        tensors |= {f"{prefix}mixer.{name}": x for name, x in own.items()}
    tensors |= _named("transformer.norm", parts.norm) | _named("output", parts.output)
    _load(model, tensors)
    return model


def _load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives a model on the device "meta" copies of its weights; biases that are missing are 0."""
    table = tensors["embeddings.0.weight"]
    weights = {}
    for name, own in model.state_dict().items():
        x = tensors.get(name)
        weights[name] = table.new_zeros(own.shape) if x is None else x.detach().clone()
    model.load_state_dict(weights, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _named(name: str, module: Any) -> Tensors:
    """The weight, and the bias if there is one, of a linear layer, of several, or of a norm."""
    modules: Sequence[Any] = module if isinstance(module, tuple) else (module,)
    for part in modules:
        plain = type(part) in (nn.Linear, Conv1D, nn.LayerNorm) or "RMSNorm" in type(part).__name__
        if not plain:
            advice = "merge adapters into the weights, and load without quantization"
            raise _cannot(name, "a layer of transformers' own", type(part).__name__, advice)
    weights = [part.weight.t() if type(part) is Conv1D else part.weight for part in modules]
    tensors = {f"{name}.weight": torch.cat(weights) if len(weights) > 1 else weights[0]}
    if any(bias is not None for bias in _biases(modules)):
        biases = [
            weight.new_zeros(len(weight)) if bias is None else bias
            for weight, bias in zip(weights, _biases(modules), strict=True)
        ]
        tensors[f"{name}.bias"] = torch.cat(biases)
    return tensors


def _biases(modules: Sequence[Any]) -> list[Tensor | None]:
    return [getattr(part, "bias", None) for part in modules]


def _biased(layer: Mapping[str, Any]) -> Iterator[str]:
    """The parts of a layer that have a bias."""
    for name, module in layer.items():
        modules = module if isinstance(module, tuple) else (module,)
        if any(bias is not None for bias in _biases(modules)):
            yield name


def _read_attention(layer: nn.Module) -> tuple[Attention, Tensors]:
    """The attention of a layer, and the weights that it has beside its projections."""
    if isinstance(layer, ConvertedAttention):
        return _read_converted(layer)
    attention = cast(Any, layer)
    name = attention.config._attn_implementation
    if settings := registered.get(name):
        feature_map = settings["feature_map"]
        feature_map = getattr(feature_map, "pointwise", None) or feature_map
        if feature_map not in feature_map_names():
            raise _cannot("feature_map", "one that is given by name", feature_map)
        _, kv_heads, head_dim = shape_of(layer)
        weights = shared_feature_map(feature_map, head_dim).state_dict(prefix="feature_map.")
        decay = settings["decay"]
        like = next(layer.parameters())
        weights |= _decay_weights(log_decay(decay, kv_heads, like.double()), like)
        linear = Linear(feature_map, settings["eps"], decay=None if decay is None else "fixed")
        return linear, weights
    if name not in _SOFTMAX:
        raise _cannot("attn_implementation", "softmax, or a name of register", quote(name))
    _check_scaling(layer)
    return Softmax(), {}


def _read_converted(layer: ConvertedAttention) -> tuple[Attention, Tensors]:
    heads, kv_heads, head_dim = shape_of(layer.attention)
    weights = layer.feature_map.state_dict(prefix="feature_map.")
    name, options = layer.map_name, {}
    if isinstance(layer.feature_map, Hedgehog):
        features = layer.feature_map.feature_dim(head_dim)
        options = {"num_features": features, "num_heads": heads, "num_kv_heads": kv_heads}
        if layer.window_size:  # ours scales the queries and keys of a window itself
            _check_scaling(layer.attention)
        else:
            root = cast(float, layer.attention.scaling) ** 0.5
            weights = {key: x * root for key, x in weights.items()}
    like = next(layer.attention.parameters())
    weights |= _decay_weights(log_decay(layer.decay, kv_heads, like.double()), like)
    if layer.log_gamma is not None:
        weights["log_gamma"] = layer.log_gamma
    decay = None if layer.decay is None else "fixed"
    linear = Linear(name, feature_map_options=options, decay=decay, window_size=layer.window_size)
    return linear, weights


def _decay_weights(logarithms: Tensor | None, like: Tensor) -> Tensors:
    """The numbers whose sigmoid is the decay of each head of keys; none for no decay."""
    if logarithms is None:
        return {}
    logits = logarithms - (-torch.expm1(logarithms)).log()
    return {"decay.logits": logits.to(torch.promote_types(like.dtype, torch.float32))}


def _unwrapped(attention: nn.Module) -> Any:
    """The layer of transformers, which a `ConvertedAttention` wraps."""
    return attention.attention if isinstance(attention, ConvertedAttention) else attention


def _check_scaling(attention: Any) -> None:
    usual = shape_of(attention)[2] ** -0.5
    if not math.isclose(attention.scaling, usual, rel_tol=1e-6):
        raise _cannot(
            "the scale of the scores", f"1 / sqrt(head_dim) = {usual:g}", attention.scaling
        )


def _cannot(name: str, wanted: object, got: object, advice: str = "") -> ValueError:
    advice = advice or "generate with the model of transformers"
    return ValueError(expected(f"{name} of from_transformers", wanted, got, advice))


@torch.no_grad()
def _compare(model: Any, translated: AutoregressiveTransformer) -> None:
    """Refuses a model whose logits of a few tokens are not those of the original."""
    window = getattr(translated.config.attention, "window_size", 0)
    count = min(window + _TRIED, translated.max_length)
    tokens = torch.arange(count, device=translated.device)[None] % translated.head.levels
    with evaluating(model), evaluating(translated):
        wanted = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        got = translated(tokens)[0, 1:].float()
    error, limit = float((got - wanted).norm() / wanted.norm()), _TOLERANCE
    limit = max(limit, 16 * torch.finfo(translated.output.weight.dtype).eps)
    if not error <= limit:
        what = "the logits of from_transformers"
        raise ValueError(expected(what, f"the model's, to {limit:g}", f"a difference of {error:g}"))
