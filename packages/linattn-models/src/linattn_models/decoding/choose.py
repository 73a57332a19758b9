"""What makes steps: the model or a compiled decoder, and a cache of the decoders."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple, cast

from torch import nn

from linattn_core import choice
from linattn_core.autocast import autocast_dtype
from linattn_core.decoder_spec import CannotCompile, DecoderDescription, TokenCoding
from linattn_core.errors import expected
from linattn_models.basics.validation import no_dropout, one_of
from linattn_models.decoding.compile import compile_described
from linattn_models.decoding.compiled_decoder import CompiledDecoder
from linattn_models.decoding.generate import TokenModel
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Rerun, Stepper
from linattn_models.state import Cursor, check_end
from linattn_models.weights.fingerprint import WeightsRecord, record_weights
from linattn_models.weights.sharded import require_whole

DECODERS = ("auto", "eager", "compiled")
METHODS = ("auto", "stateful", "rerun")
# Packing the weights costs about as much as this number of steps.
FEWEST_STEPS = 16


def choose_source(
    model: TokenModel, method: str, decoder: str | CompiledDecoder, prompt: Prompt
) -> Stepper:
    """What makes the steps after a prompt, with the method and decoder of `generate`."""
    method = choose_method(model, method)
    no_dropout(model.training, model.config.dropout)
    if method == "rerun":
        prompt.check_stateless()
    else:
        require_whole(model)
    compiled = choose_decoder(model, method, decoder, prompt.steps, prompt.positions)
    if compiled is not None:
        return compiled
    return Rerun(model) if method == "rerun" else model


def choose_method(model: TokenModel, method: str) -> str:
    """The method without "auto", which means "rerun" for a model that cannot step."""
    one_of("method", method, METHODS)
    if method == "auto":
        return "stateful" if model.can_step else "rerun"
    return method


def choose_decoder(
    model: TokenModel,
    method: str,
    decoder: str | CompiledDecoder,
    steps: int,
    positions: int | None = None,
) -> CompiledDecoder | None:
    """The compiled decoder that `generate` steps with, or None where the model itself predicts.

    Args:
        method: "stateful" or "rerun".
        decoder: as for `generate`.
        steps: tokens to draw, which decide whether packing the weights is worth it.
        positions: how many positions the sequences take; by default as many as the model has.
    """
    if method == "rerun":
        if decoder not in ("auto", "eager"):
            wanted = "'auto' or 'eager' with method 'rerun', which takes no decoder"
            raise ValueError(expected("decoder", wanted, repr(decoder), "pass method='stateful'"))
        return None
    if isinstance(decoder, CompiledDecoder):
        decoder.check_decodes(model)
        check_end(Cursor(0, positions or 0), decoder.longest)
        return decoder
    if decoder not in DECODERS:
        wanted = f"{', '.join(map(repr, DECODERS))}, or what compile_decoder made"
        raise ValueError(expected("decoder", wanted, repr(decoder)))
    if decoder == "eager" or (decoder == "auto" and not _worth_packing(model, steps)):
        return None
    try:
        return packed_decoder(model, positions)
    except CannotCompile:
        if decoder == "compiled":
            raise
        return None


def _worth_packing(model: TokenModel, steps: int) -> bool:
    # In autocast the model computes in half precision, and a compiled decoder does not.
    return steps >= FEWEST_STEPS and autocast_dtype(model.device.type) is None


class _Packed(NamedTuple):
    """A decoder, and the weights and settings that it was packed from."""

    decoder: CompiledDecoder
    source: tuple[WeightsRecord, tuple[Any, ...]]


# Not an attribute of the models, so that copies, pickles and state dicts do not contain it.
_cache: weakref.WeakKeyDictionary[TokenModel, _Packed] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def packed_decoder(model: TokenModel, positions: int | None = None) -> CompiledDecoder:
    """The float32 decoder of the model with its current weights, for at least `positions`.

    Cost: if a weight, a layer, a setting or the head has changed since the last call, the weights
    are packed; otherwise they are read once, which takes about as long as one step.
    """
    description = model.describe(positions)
    with _lock:
        source, packed = _source(model, description), _cache.pop(model, None)
        if packed is None or packed.source != source:
            del packed  # frees its memory before the next is packed
            decoder = compile_described(model, description, "float32", "auto")
            packed = _Packed(cast(CompiledDecoder, decoder), source)
        _cache[model] = packed
        return packed.decoder


def kept_decoder(model: TokenModel, positions: int | None = None) -> CompiledDecoder | None:
    """The decoder that `packed_decoder` would return without packing; None if it would pack.

    Cost: one read of the weights if there is a decoder of the model.
    """
    packed = _cache.get(model)
    if packed is None or packed.source != _source(model, model.describe(positions)):
        return None
    return packed.decoder


def _source(
    model: TokenModel, description: DecoderDescription
) -> tuple[WeightsRecord, tuple[Any, ...]]:
    """What a decoder depends on."""
    tokens = cast(TokenCoding, description.tokens)
    table = None if tokens.positions is None else tokens.positions.shape
    settings = model.config, model.head, model.max_length, tokens.sampler, table
    return record_weights(cast(nn.Module, model)), (*settings, *settings_of(description))


def settings_of(description: DecoderDescription) -> tuple[Any, ...]:
    """What a described decoder depends on, apart from its tensors."""
    norms = [description.norm]
    for layer in description.layers:
        norms += [layer.norm1, layer.norm2]
    return (
        choice.current,
        description.feature_map,
        description.eps,
        description.activation,
        description.norm_first,
        description.num_kv_heads,
        description.rotary_base,
        description.window_size,
        tuple(norm.eps for norm in norms),
    )
