"""Which decoder is compiled of a model: native code on the CPU, CUDA graphs on a GPU."""

from __future__ import annotations

from typing import Any, cast, overload

import torch

from linattn_core import registry
from linattn_core.decoding import (
    WEIGHTS,
    CannotCompile,
    DecoderDescription,
    NativeDecoder,
)
from linattn_models.arithmetic import device_of
from linattn_models.compiled import CompiledDecoder, CompiledTransformer, TokenModel
from linattn_models.generation import DECODERS
from linattn_models.graphed import GraphedDecoder
from linattn_models.heads.base import Drawn
from linattn_models.recording import CudaGraphRecorder, Recorder
from linattn_models.transformer import Transformer
from linattn_models.validation import one_of

# Steps that are worth packing the weights for, which costs about as much as so many of them.
_FEWEST_STEPS = 16


@overload
def compile_decoder(
    model: Transformer, weights: str = ..., backend: str = ...
) -> CompiledTransformer: ...
@overload
def compile_decoder(
    model: TokenModel, weights: str = ..., backend: str = ...
) -> CompiledDecoder: ...
def compile_decoder(
    model: Transformer | TokenModel, weights: str = "float32", backend: str = "auto"
) -> CompiledTransformer | CompiledDecoder:
    """Packs a model's weights for decoding; a whole step is then one native call or CUDA graph.

    On the CPU a backend compiles the decoder. On a GPU a step is recorded once for each number of
    rows, when that number is first stepped, as one CUDA graph with the draw inside.

    Args:
        model: an `AutoregressiveTransformer` or a bare `Transformer`, with causal linear attention
            and a feature map of each number alone ("elu", "relu", "identity"), in float32.
            Decoding never drops out, whatever mode the model is in.
        weights: "float32" gives the model's own numbers to rounding. "bfloat16" rounds each weight
            to 2^-9 of itself, "int8" (on the CPU alone) to 1/254 of the largest weight of its
            output; both are read in a half and a quarter of the time. What else a backend rounds,
            it says; on a GPU "bfloat16" computes the layers' products in bfloat16, and keeps
            states, norms, residual sums and the head in float32.
        backend: on the CPU one that compiles decoders, or "auto" for the fastest that takes this
            one; on a GPU what runs the attention, as for `linear_attention`.

    Returns:
        A decoder with the model's `prefill`, `step`, `generate` and `stream`.

    Raises:
        CannotCompile (a ValueError): a model that has no compiled step, or no backend that
            compiles it, with the reasons.
        ValueError: unknown weights or backend.

    Cost: memory for the packed weights; time to read the model's once. On a GPU also the states of
    each number of rows that was stepped, of the four last at most.
    """
    description = _described(model, weights)
    if device_of(description).type == "cuda":
        return graph_decoder(model, weights, backend)
    return _wrapped(model, weights, description, _compile(backend, description, weights))


def graph_decoder(
    model: Transformer | TokenModel,
    weights: str = "float32",
    backend: str = "auto",
    recorder: Recorder | None = None,
) -> CompiledTransformer | CompiledDecoder:
    """The decoder that `compile_decoder` makes of a model on a GPU.

    Args:
        model, weights, backend: as for `compile_decoder`.
        recorder: what repeats the steps, CUDA graphs by default. An `EagerRecorder` calls them one
            operation after the other, on any device.

    Raises:
        CannotCompile, ValueError: as for `compile_decoder`; without a recorder also a model that is
            not on a GPU.
    """
    description = _described(model, weights)
    if backend != "auto":
        registry.named(backend)
    if recorder is None:
        recorder = CudaGraphRecorder(device_of(description))
    tokens = description.tokens
    choose = None
    if tokens is not None and tokens.sampler is not None:
        choose = cast(Drawn, cast(TokenModel, model).head).choose
    native = GraphedDecoder(description, weights, backend, choose, recorder)
    return _wrapped(model, weights, description, native)


def choose_decoder(
    model: TokenModel, decoder: str | CompiledDecoder, steps: int
) -> CompiledDecoder | None:
    """The decoder that `generate` was asked for, or None where the model steps itself.

    Raises:
        ValueError: a name that is unknown, or "compiled" where that cannot be.
    """
    if isinstance(decoder, CompiledDecoder):
        decoder.check_decodes(model)
        return decoder
    one_of("decoder", decoder, DECODERS)
    if decoder == "eager" or (decoder == "auto" and not _worth_compiling(model, steps)):
        return None
    try:
        return compile_decoder(model)
    except CannotCompile:
        if decoder == "compiled":
            raise
        return None


def _described(model: Any, weights: str) -> DecoderDescription:
    one_of("weights", weights, WEIGHTS)
    if not callable(getattr(model, "describe", None)):
        raise TypeError(
            "compile_decoder takes an AutoregressiveTransformer or a Transformer and got a "
            f"{type(model).__name__}."
        )
    return cast(DecoderDescription, model.describe())


def _wrapped(
    model: Transformer | TokenModel,
    weights: str,
    description: DecoderDescription,
    native: NativeDecoder,
) -> CompiledTransformer | CompiledDecoder:
    device = device_of(description)
    if description.tokens is None:
        return CompiledTransformer(model.config, weights, native, device)
    return CompiledDecoder(
        cast(TokenModel, model),
        weights,
        native,
        device,
        draws_inside=description.tokens.sampler is not None,
    )


def _compile(backend: str, description: DecoderDescription, weights: str) -> NativeDecoder:
    try:
        return registry.compile_decoder(backend, description, weights)
    except CannotCompile as error:
        if registry.backends() != ("reference",):
            raise
        raise CannotCompile(
            f"{error} No native backend is installed; linattn-cpu, the extra [cpu], is one that "
            "compiles decoders."
        ) from None


def _worth_compiling(model: TokenModel, steps: int) -> bool:
    # Autocast would have the model compute in half precision, which a compiled decoder does not.
    return steps >= _FEWEST_STEPS and not torch.is_autocast_enabled(model.device.type)
