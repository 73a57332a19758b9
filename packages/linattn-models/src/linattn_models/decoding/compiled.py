"""Compiling a model of tokens or of vectors, choosing what makes steps, and a cache of decoders."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple, Protocol, cast, overload

from torch import nn

from linattn_core import choice, registry
from linattn_core.autocast import autocast_dtype
from linattn_core.decoder_spec import (
    WEIGHTS,
    CannotCompile,
    DecoderDescription,
    NativeDecoder,
)
from linattn_core.errors import expected
from linattn_models.basics.validation import at_least, boolean, no_dropout, one_of
from linattn_models.decoding.compiled_decoder import CompiledDecoder, CompiledTransformer
from linattn_models.decoding.generate import TokenModel
from linattn_models.decoding.graph import CudaGraphRecorder, GraphDecoder, Invert, Recorder
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Rerun, Stepper
from linattn_models.layers.config import TransformerConfig
from linattn_models.state import DecodingState, check_end
from linattn_models.weights.fingerprint import WeightsRecord, compute_fingerprint, record_weights
from linattn_models.weights.sharded import require_whole

DECODERS = ("auto", "eager", "compiled")
METHODS = ("auto", "stateful", "rerun")
# Packing the weights costs about as much as this number of steps.
FEWEST_STEPS = 16


class VectorModel(Protocol):
    """A model of vectors, as `Transformer` is."""

    @property
    def config(self) -> TransformerConfig: ...

    def describe(self) -> DecoderDescription:
        """Its weights and settings."""

    def initial_state(self, batch: int, *, max_length: int | None = None) -> DecodingState:
        """The state before the first position."""


@overload
def compile_decoder(
    model: TokenModel,
    weights: str = ...,
    backend: str = ...,
    max_length: int | None = ...,
    *,
    fuse: bool = ...,
) -> CompiledDecoder: ...
@overload
def compile_decoder(
    model: VectorModel, weights: str = ..., backend: str = ..., *, fuse: bool = ...
) -> CompiledTransformer: ...
def compile_decoder(
    model: Any,
    weights: str = "float32",
    backend: str = "auto",
    max_length: int | None = None,
    *,
    fuse: bool = False,
) -> CompiledDecoder | CompiledTransformer:
    """Packs a model's weights for decoding; a whole step is then one native call or CUDA graph.

    On the CPU a backend compiles the decoder. On a GPU a step is recorded as one CUDA graph, which
    smaller batches of more than half its rows use too. Both include the draw, with its filters.

    Args:
        model: an `AutoregressiveTransformer` or a bare `Transformer`, with causal linear attention
            and the feature map "elu", "relu", "identity" or "hedgehog", in float32; without
            cross-attention. A decoder never uses dropout, also if the model is in training mode.
        weights: the dtype of the packed matrices. "float32" gives the model's own results to
            rounding. "bfloat16" rounds each weight by at most 2^-8 of itself, "int8" (CPU only) by
            at most 1/254 of the largest weight of the same output; reading them takes a half and a
            quarter of the time. On a GPU "bfloat16" also computes the products of layers and head
            in bfloat16; states, norms, residual sums and the head's outputs are float32. With
            linattn-cpu, "int8" rounds activations to 16 bits, and "bfloat16" rounds them to
            bfloat16 in products of 9 rows or more with AMX, of 16 or more with AVX512-BF16: there,
            a row of a batch may draw other tokens than the same row alone.
        backend: on the CPU, the backend that compiles the decoder, or "auto" for the fastest that
            accepts the model; on a GPU, the backend of the attention, as for `linear_attention`.
        max_length: how many positions the decoder must have, for a model of tokens with sinusoidal
            positions; by default the model's `max_length`, or 4,096. A model with "rotary" or
            "none" can step any number.
        fuse: on a GPU, `torch.compile` makes a step of fewer kernels before it is recorded: for one
            row of `TransformerConfig.language` 14 a layer, and 8 without its window, in place of
            some 70 and 26. By estimate, each kernel less saves a microsecond. It needs Triton
            (which torch for CUDA brings), a C compiler, and by estimate a minute at the first step
            of each number of rows, and at the first with filters; torch keeps the kernels for later
            processes. Sums are rounded in another order. Without effect on the CPU, where a step is
            one call.

    Returns:
        For a model of tokens, a `CompiledDecoder` with its `prefill`, `step`, `generate`, `stream`
        and `beam_search`; for one of vectors, a `CompiledTransformer` with `prefill` and `step`.

    Raises:
        CannotCompile (a ValueError): the model has no compiled step, or no backend compiles it,
            with the reasons.
        ValueError: unknown weights or backend, or a `max_length` for a model of vectors.
        TypeError: not a model.

    Cost: memory for the packed weights, and the time to read the model's weights twice. On a GPU
    also memory for the states of the last four batch sizes that were stepped.
    """
    description = read_description(model, max_length)
    decoder = compile_described(model, description, weights, backend, fuse=fuse)
    if isinstance(decoder, CompiledDecoder) and isinstance(model, nn.Module):
        decoder.set_fingerprint(compute_fingerprint(model))
    return decoder


def read_description(model: Any, max_length: int | None) -> DecoderDescription:
    """The model's description, after checks of the arguments of `compile_decoder`."""
    if not callable(getattr(model, "describe", None)):
        wanted = "an AutoregressiveTransformer or a Transformer"
        raise TypeError(expected("model", wanted, f"a {type(model).__name__}"))
    if max_length is None:
        return cast(DecoderDescription, model.describe())
    max_length = at_least("max_length", max_length, 1)
    if not hasattr(model, "head"):
        advice = "a decoder of vectors has no positions"
        raise ValueError(expected("max_length", "a model of tokens", "one of vectors", advice))
    return cast(DecoderDescription, model.describe(max_length))


def compile_described(
    model: Any,
    description: DecoderDescription,
    weights: str,
    backend: str,
    recorder: Recorder | None = None,
    *,
    fuse: bool = False,
) -> CompiledDecoder | CompiledTransformer:
    """As `compile_decoder`, from the result of `model.describe()`.

    Args:
        recorder: records and repeats steps; by default CUDA graphs on a GPU, none on the CPU. With
            an `EagerRecorder`, which runs the operations one by one, this works on any device.
    """
    one_of("weights", weights, WEIGHTS)
    boolean("fuse", fuse)
    tokens = description.tokens
    draws_inside = tokens is not None and tokens.sampler is not None
    invert = model.head.invert if draws_inside else None
    if recorder is None and description.device.type == "cuda":
        recorder = CudaGraphRecorder(description.device, fuse)
    native = _compile_native(description, weights, backend, invert, recorder)
    if tokens is None:
        return CompiledTransformer(model.config, weights, native, description)
    return CompiledDecoder(model, weights, native, description, draws_inside=draws_inside)


def _compile_native(
    description: DecoderDescription,
    weights: str,
    backend: str,
    invert: Invert | None,
    recorder: Recorder | None,
) -> NativeDecoder:
    """A decoder of states in tensors, without the interface of a model.

    Args:
        invert: the method of the head that draws inside a recorded step; None to draw none.
    """
    backend = choice.current if backend == "auto" else backend
    if recorder is not None:
        return GraphDecoder(description, weights, backend, invert, recorder)
    try:
        return registry.compile_decoder(backend, description, weights)
    except CannotCompile as error:
        if len(registry.installed_backends()) > 1:
            raise
        advice = "install one that compiles decoders: linattn-cpu, the extra [cpu]"
        wanted = expected("backends", "a native one", "the reference alone", advice)
        raise CannotCompile(f"{error} {wanted}") from None


def choose_source(
    model: TokenModel, method: str, decoder: str | CompiledDecoder, prompt: Prompt
) -> Stepper:
    """What makes the steps after a prompt, with the method and decoder of `generate`."""
    method = choose_method(model, method)
    no_dropout(model.training, model.config.dropout)
    if method == "rerun":
        if prompt.state is not None or prompt.keeps_state:
            advice = "pass method='stateful', or leave out state and return_state"
            got = "method 'rerun', which runs all tokens again"
            raise ValueError(expected("a state", "a model that steps", got, advice))
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
        check_end(positions or 0, decoder.longest)
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


_Source = tuple[WeightsRecord, tuple[Any, ...]]


class _Packed(NamedTuple):
    """A decoder, and the weights and settings that it was packed from."""

    decoder: CompiledDecoder
    source: _Source


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


def _source(model: TokenModel, description: DecoderDescription) -> _Source:
    """What a decoder depends on."""
    settings = model.config, model.head, model.max_length, choice.current, description.settings
    return record_weights(cast(nn.Module, model)), settings
