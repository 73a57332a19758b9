"""Steps of a converted model of transformers by a compiled decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from linattn_core import LinearAttentionState
from linattn_core.decoder_spec import (
    CannotCompile,
    DecoderDescription,
    NativeDecoder,
    TokenCoding,
)
from linattn_core.errors import expected
from linattn_models import description
from linattn_models.decoding.choose import settings_of
from linattn_models.decoding.compile import compile_native
from linattn_models.fingerprint import WeightsRecord, record_weights
from linattn_models.huggingface.cache import StateLayer
from linattn_models.huggingface.converted import ConvertedAttention, shape_of
from linattn_models.huggingface.decays import log_decay
from linattn_models.huggingface.steps import Steps
from linattn_models.state import Cursor, zero_states

EPS = 1e-6  # of `linear_attention`, whose default converted layers use
_TRIED, _TOLERANCE = 3, 1e-3
# What a description calls an activation that transformers calls so; the others have the same name.
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}

# Describes a model for a backend that compiles whole steps; refuses what it cannot express.
Describe = Callable[[Any], DecoderDescription]


def compiled_logits(
    model: nn.Module,
    describe: Describe,
    cache: Any,
    inputs: tuple[Tensor | None, Tensor | None, Tensor | None],
    asked: tuple[object, object, object, dict[str, Any]],
) -> Tensor | None:
    """The logits (B, 1, V) of a forward that a compiled decoder makes; None for any other.

    Args:
        cache: its states are updated.
        inputs: input_ids, attention_mask and position_ids.
        asked: inputs_embeds, labels, logits_to_keep and all other arguments.
    """
    if torch.compiler.is_compiling():
        return None
    layers = _states_in(cache, cast(Any, model.config).num_hidden_layers)
    ids, _, places = inputs
    if layers and ids is not None and ids.shape[1:] != (1,):
        layers[0].steps = Steps()  # a prompt: compares all weights again
    elif layers and _gives_logits_alone(model.config, *asked) and _fits(layers, *inputs):
        return _step(model, describe, layers, cast(Tensor, ids), places)
    return None


def name_activation(name: str, layers: Sequence[nn.Module]) -> str:
    """The name that a description has for an activation of transformers; refuses other layers."""
    for layer in layers:
        description.require(layer, type(ACT2FN[name]))
    return _ACTIVATIONS.get(name, name)


def check_converted(layer: nn.Module, kind: type[nn.Module]) -> ConvertedAttention:
    """A converted layer of this kind, if compiled steps can express it."""
    description.require(layer, ConvertedAttention)
    converted = cast(ConvertedAttention, layer)
    description.require(converted.attention, kind)
    if converted.window_size or converted.feature_map.pointwise is None or converted.teaching:
        wanted = "a map of each number alone, no window and no teaching"
        raise CannotCompile(expected("a converted layer", wanted, "another", "decode eagerly"))
    return converted


def common_map(layers: Sequence[ConvertedAttention]) -> str:
    """The name of the feature map of all layers."""
    names = {cast(str, layer.feature_map.pointwise) for layer in layers}
    if len(names) != 1:
        raise CannotCompile(expected("feature maps", "the same in all layers", names))
    return names.pop()


def decay_logits(layer: ConvertedAttention, like: Tensor) -> Tensor | None:
    """The numbers whose sigmoid is the decay of each head of keys; None for no decay."""
    logarithms = log_decay(layer.decay, shape_of(layer.attention)[1], like.double())
    if logarithms is None:
        return None
    return (logarithms - (-torch.expm1(logarithms)).log()).to(like.dtype)


class _Packed(NamedTuple):
    """A decoder, and what it was packed from."""

    native: NativeDecoder
    source: tuple[WeightsRecord, tuple[Any, ...]]
    longest: int | None


# Not an attribute of the models, so that copies, pickles and state dicts do not contain it.
_cache: WeakKeyDictionary[nn.Module, _Packed] = WeakKeyDictionary()


def _find(model: nn.Module, describe: Describe, pack: bool) -> _Packed | None:
    """The decoder of the model as it is now; None if there is none and none is to be packed."""
    packed = _cache.get(model)
    if packed is None and not pack:
        return None
    described = describe(model)
    source = record_weights(model), settings_of(described)
    if packed is not None and packed.source == source:
        return packed
    if not pack:
        return None
    _cache.pop(model, None)
    native = compile_native(described)
    _compare(model, described, native)
    table = cast(TokenCoding, described.tokens).positions
    longest = None if table is None else len(table)
    _cache[model] = _Packed(native, source, longest)
    return _cache[model]


def _compare(model: Any, described: DecoderDescription, native: NativeDecoder) -> None:
    """Refuses a decoder whose logits of a few tokens are not those of the model."""
    table = cast(TokenCoding, described.tokens).positions
    tried = _TRIED if table is None else min(_TRIED, len(table))
    tokens = torch.arange(tried, device=model.device) % model.config.vocab_size
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
    model: nn.Module,
    describe: Describe,
    layers: Sequence[StateLayer],
    ids: Tensor,
    places: Tensor | None,
) -> Tensor | None:
    """The logits (B, 1, V) of a compiled step, which updates the states; None without a decoder."""
    seen = layers[0].seen
    cursor = Cursor(seen, seen)
    if places is not None:
        cursor = Cursor.at(places[:, 0].expand(len(ids)).contiguous())
    furthest = cursor.furthest
    packed = layers[0].steps.choose(model, furthest, lambda pack: _find(model, describe, pack))
    if packed is None or (packed.longest is not None and furthest >= packed.longest):
        return None
    states = tuple(cast(LinearAttentionState, layer.state) for layer in layers)
    logits, _ = packed.native.step(ids[:, 0], cursor.position, states, None)
    for layer in layers:
        layer.seen, layer.ready = layer.seen + 1, None
    return cast(Tensor, logits.unsqueeze(1))
