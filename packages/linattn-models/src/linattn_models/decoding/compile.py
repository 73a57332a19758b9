"""Which decoder is compiled from a model: native code on the CPU, CUDA graphs on a GPU."""

from __future__ import annotations

from typing import cast, overload

from linattn_core import choice, registry
from linattn_core.decoding import WEIGHTS, CannotCompile, DecoderDescription, NativeDecoder
from linattn_core.errors import expected
from linattn_models.decoding.graph import GraphDecoder
from linattn_models.decoding.model import DescribedModel, TokenModel, VectorModel
from linattn_models.decoding.native import CompiledDecoder
from linattn_models.decoding.recording import CudaGraphRecorder, Recorder
from linattn_models.decoding.vectors import CompiledTransformer
from linattn_models.heads.base import Drawn
from linattn_models.validation import at_least, one_of


@overload
def compile_decoder(
    model: TokenModel, weights: str = ..., backend: str = ..., max_length: int | None = ...
) -> CompiledDecoder: ...
@overload
def compile_decoder(
    model: VectorModel, weights: str = ..., backend: str = ...
) -> CompiledTransformer: ...
def compile_decoder(
    model: DescribedModel,
    weights: str = "float32",
    backend: str = "auto",
    max_length: int | None = None,
) -> CompiledDecoder | CompiledTransformer:
    """Packs a model's weights for decoding; a whole step is then one native call or CUDA graph.

    On the CPU a backend compiles the decoder. On a GPU a step is recorded once for each number of
    rows, when that number is first stepped, as one CUDA graph with the draw inside.

    Args:
        model: an `AutoregressiveTransformer` or a bare `Transformer`, with causal linear attention
            and a feature map of each number alone ("elu", "relu", "identity"), in float32.
            Decoding never drops out, whatever mode the model is in.
        weights: "float32" gives the model's own numbers to rounding. "bfloat16" rounds each weight
            to 2^-9 of itself, "int8" (on the CPU alone) to 1/254 of the largest weight of its
            output; they are read in half and a quarter of the time. On a GPU "bfloat16" also
            computes the layers' products in bfloat16, and keeps states, norms, residual sums and
            the head in float32; a CPU backend documents what else it rounds.
        backend: on the CPU one that compiles decoders, or "auto" for the fastest that takes this
            one; on a GPU what runs the attention, as for `linear_attention`.
        max_length: the positions to compile for, where a model with sinusoidal positions has no
            longest sequence; by default its `max_length`, or 4,096. Without positions there is no
            end.

    Returns:
        A decoder with the model's `prefill`, `step`, `generate` and `stream`.

    Raises:
        CannotCompile (a ValueError): a model that has no compiled step, or no backend that
            compiles it, with the reasons.
        ValueError: unknown weights or backend.

    Cost: memory for the packed weights; time to read the model's once. On a GPU also memory for the
    states of at most the four numbers of rows that were stepped last.
    """
    if not callable(getattr(model, "describe", None)):
        wanted = "an AutoregressiveTransformer or a Transformer"
        raise TypeError(expected("model", wanted, f"a {type(model).__name__}"))
    if max_length is None:
        return compile_described(model, model.describe(), weights, backend)
    at_least("max_length", max_length, 1)
    if not hasattr(model, "head"):
        advice = "a decoder of vectors has no positions"
        raise ValueError(expected("max_length", "a model of tokens", "one of vectors", advice))
    description = cast(TokenModel, model).describe(max_length)
    return compile_described(model, description, weights, backend)


def compile_described(
    model: DescribedModel,
    description: DecoderDescription,
    weights: str,
    backend: str,
    recorder: Recorder | None = None,
) -> CompiledDecoder | CompiledTransformer:
    """As `compile_decoder`, from the result of `model.describe()`.

    Args:
        recorder: what repeats recorded steps, on a GPU CUDA graphs by default. With an
            `EagerRecorder`, which calls them one operation after the other, steps are recorded on
            any device.
    """
    one_of("weights", weights, WEIGHTS)
    backend = choice.current if backend == "auto" else backend
    tokens = description.tokens
    draws_inside = tokens is not None and tokens.sampler is not None
    if recorder is None and description.device.type == "cuda":
        recorder = CudaGraphRecorder(description.device)
    if recorder is None:
        native = _compile(backend, description, weights)
    else:
        choose = cast(Drawn, cast(TokenModel, model).head).choose if draws_inside else None
        native = GraphDecoder(description, weights, backend, choose, recorder)
    if tokens is None:
        return CompiledTransformer(model.config, weights, native, description.device)
    model = cast(TokenModel, model)
    return CompiledDecoder(model, weights, native, tokens.positions, draws_inside=draws_inside)


def _compile(backend: str, description: DecoderDescription, weights: str) -> NativeDecoder:
    try:
        return registry.compile_decoder(backend, description, weights)
    except CannotCompile as error:
        if registry.backends() != ("reference",):
            raise
        advice = "install one that compiles decoders: linattn-cpu, the extra [cpu]"
        wanted = expected("backends", "a native one", "the reference alone", advice)
        raise CannotCompile(f"{error} {wanted}") from None
