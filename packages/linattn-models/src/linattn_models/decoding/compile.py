"""`compile_decoder`: the packed weights of a model, for steps of one native call or CUDA graph."""

from __future__ import annotations

from typing import Any, Protocol, overload

from torch import nn

from linattn_core import choice, registry
from linattn_core.decoder_spec import WEIGHTS, CannotCompile, DecoderDescription, NativeDecoder
from linattn_core.errors import expected
from linattn_models.basics.validation import at_least, one_of
from linattn_models.decoding.compiled_decoder import CompiledDecoder
from linattn_models.decoding.compiled_transformer import CompiledTransformer
from linattn_models.decoding.generate import TokenModel
from linattn_models.decoding.graph import GraphDecoder, Invert
from linattn_models.decoding.recorders import CudaGraphRecorder, Recorder
from linattn_models.layers.config import TransformerConfig
from linattn_models.state import DecodingState
from linattn_models.weights.fingerprint import compute_fingerprint


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
    model: TokenModel, weights: str = ..., backend: str = ..., max_length: int | None = ...
) -> CompiledDecoder: ...
@overload
def compile_decoder(
    model: VectorModel, weights: str = ..., backend: str = ...
) -> CompiledTransformer: ...
def compile_decoder(
    model: Any, weights: str = "float32", backend: str = "auto", max_length: int | None = None
) -> CompiledDecoder | CompiledTransformer:
    """Packs a model's weights for decoding; a whole step is then one native call or CUDA graph.

    On the CPU a backend compiles the decoder. On a GPU a step is recorded as one CUDA graph, which
    smaller batches of more than half its rows use too. Both include the draw; filters of it follow
    a graph in torch.

    Args:
        model: an `AutoregressiveTransformer` or a bare `Transformer`, with causal linear attention
            and the feature map "elu", "relu" or "identity", in float32; without
            cross-attention. A decoder never uses dropout, also if the model is in training mode.
        weights: the dtype of the packed matrices. "float32" gives the model's own results to
            rounding. "bfloat16" rounds each weight by at most 2^-8 of itself, "int8" (CPU only) by
            at most 1/254 of the largest weight of the same output; reading them takes a half and a
            quarter of the time. On a GPU "bfloat16" also computes the layers' products in bfloat16,
            and keeps states, norms, residual sums and the head in float32. With linattn-cpu,
            "int8" rounds activations to 16 bits, and "bfloat16" rounds them to bfloat16 in products
            of 9 rows or more with AMX, of 16 or more with AVX512-BF16: there, a row of a batch may
            draw other tokens than the same row alone.
        backend: on the CPU, the backend that compiles the decoder, or "auto" for the fastest that
            accepts the model; on a GPU, the backend of the attention, as for `linear_attention`.
        max_length: how many positions the decoder must have, for a model of tokens with sinusoidal
            positions; by default the model's `max_length`, or 4,096. A model with "rotary" or
            "none" can step any number.

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
    if not callable(getattr(model, "describe", None)):
        wanted = "an AutoregressiveTransformer or a Transformer"
        raise TypeError(expected("model", wanted, f"a {type(model).__name__}"))
    if max_length is None:
        description = model.describe()
    else:
        max_length = at_least("max_length", max_length, 1)
        if not hasattr(model, "head"):
            advice = "a decoder of vectors has no positions"
            raise ValueError(expected("max_length", "a model of tokens", "one of vectors", advice))
        description = model.describe(max_length)
    decoder = compile_described(model, description, weights, backend)
    if isinstance(decoder, CompiledDecoder) and isinstance(model, nn.Module):
        decoder.set_fingerprint(compute_fingerprint(model))
    return decoder


def compile_described(
    model: Any,
    description: DecoderDescription,
    weights: str,
    backend: str,
    recorder: Recorder | None = None,
) -> CompiledDecoder | CompiledTransformer:
    """As `compile_decoder`, from the result of `model.describe()`.

    Args:
        recorder: records and repeats steps; by default CUDA graphs on a GPU, none on the CPU. With
            an `EagerRecorder`, which runs the operations one by one, this works on any device.
    """
    one_of("weights", weights, WEIGHTS)
    tokens = description.tokens
    draws_inside = tokens is not None and tokens.sampler is not None
    invert = model.head.invert if draws_inside else None
    native = compile_native(description, weights, backend, invert, recorder)
    if tokens is None:
        return CompiledTransformer(model.config, weights, native, description.device)
    longest = None if tokens.positions is None else len(tokens.positions)
    return CompiledDecoder(model, weights, native, longest, draws_inside=draws_inside)


def compile_native(
    description: DecoderDescription,
    weights: str = "float32",
    backend: str = "auto",
    invert: Invert | None = None,
    recorder: Recorder | None = None,
) -> NativeDecoder:
    """A decoder of states in tensors, without the interface of a model.

    Args:
        description: the model.
        weights, backend: as for `compile_decoder`.
        invert: the method of the head that draws inside a recorded step; None to draw none.
        recorder: as for `compile_described`.
    """
    backend = choice.current if backend == "auto" else backend
    if recorder is None and description.device.type == "cuda":
        recorder = CudaGraphRecorder(description.device)
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
