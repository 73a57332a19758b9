"""The compiled decoder: weights packed once, and any number of positions in one native call.

Weights are kept as

- float32: the model's outputs to rounding;
- bfloat16: each weight rounded to nearest, an error of 2^-9 of itself. Activations stay in float32,
  but from 16 rows on a machine with AVX512-BF16 rounds those that enter a product too;
- int8: 127 levels to either side of zero for each output of a matrix, an error of at most 1/254 of
  that output's largest weight. Activations stay in float32, or where a machine has VNNI enter
  products as 16 bits, an error of at most 2^-16 of their row's largest.

Biases, norms, embeddings and positions are float32 always.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from linattn_core.decoding import (
    WEIGHTS,
    Affine,
    DecoderDescription,
    DecoderLayer,
    Draw,
    NativeDecoder,
    Norm,
    TokenCoding,
)
from linattn_core.native import written_in_place
from linattn_core.state import LinearAttentionState
from linattn_cpu import _native

# As native/calls.hpp and native/decoder.hpp number them.
_FORMATS = {name: code for code, name in enumerate(WEIGHTS)}
_MAPS = {"identity": 0, "relu": 1, "elu": 2}
_ACTIVATIONS = {"relu": 0, "gelu": 1}
_HEADS = {"categorical": 1, "mixture_of_logistics": 2}
# Sums of so many products of 8 bits by 8 stay within 32.
_MOST_INT8_INPUTS = 65_536


def refuses_decoder(description: DecoderDescription, weights: str) -> str | None:
    """None to accept, or the reason as a sentence."""
    if weights not in _FORMATS:
        return f"weights are kept as {', '.join(WEIGHTS)} and {weights!r} was asked for."
    if description.feature_map not in _MAPS:
        return f"feature map {description.feature_map!r} is none of {', '.join(_MAPS)}."
    if description.activation not in _ACTIVATIONS:
        return f"activation {description.activation!r} is none of {', '.join(_ACTIVATIONS)}."
    if weights == "int8" and description.layers[0].contract.weight.shape[0] > _MOST_INT8_INPUTS:
        return (
            f"products of int8 weights sum at most {_MOST_INT8_INPUTS:,} inputs exactly, and the "
            f"feed-forward network has {description.layers[0].contract.weight.shape[0]:,}."
        )
    for tensor in _tensors(description):
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
            return (
                "a decoder is compiled from float32 weights on the CPU and found "
                f"{tensor.dtype} on {tensor.device}."
            )
    return None


class CpuDecoder(NativeDecoder):
    """See `linattn_core.decoding.NativeDecoder` for what the methods promise.

    The weights are packed for the instruction set that is live when the decoder is made, and run on
    it. Packing reads each weight once, twice for int8, on all of torch's threads.
    """

    def __init__(self, description: DecoderDescription, weights: str) -> None:
        self._state_shape = (description.num_heads, description.head_dim)
        self._layers = len(description.layers)
        tokens = description.tokens
        norm = description.norm
        self._width = norm.weight.shape[0] if tokens is None else tokens.output.weight.shape[1]
        self._sequential = tokens is None
        kept: list[Tensor] = []  # until the weights are packed
        self._native = _native.Decoder(
            (
                _FORMATS[weights],
                description.num_heads,
                description.head_dim,
                description.layers[0].expand.weight.shape[1],
                _MAPS[description.feature_map],
                description.eps,
                description.norm_first,
                _ACTIVATIONS[description.activation],
            ),
            [_layer(layer, kept) for layer in description.layers],
            _norm(norm, kept),
            None if tokens is None else _token_coding(tokens, kept),
            torch.get_num_threads(),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, embeddings and positions."""
        return self._native.nbytes

    @property
    def instruction_set(self) -> str:
        """What the weights were packed for, and what runs."""
        return self._native.instruction_set

    def prefill(
        self, inputs: Tensor, lengths: Tensor | None, states: Sequence[LinearAttentionState]
    ) -> Tensor:
        batch, length = inputs.shape[0], inputs.shape[1]
        shape = (batch, length, self._width) if self._sequential else (batch, self._width)
        outputs = torch.empty(shape, dtype=torch.float32, device="cpu")
        begins = not self._sequential
        self._run(inputs, length + begins, lengths, 0, begins, states, outputs, None, None)
        return outputs

    def step(
        self,
        inputs: Tensor,
        position: int | Tensor,
        states: Sequence[LinearAttentionState],
        draw: Draw | None,
    ) -> tuple[Tensor, Tensor | None]:
        shape = (inputs.shape[0], self._width)
        outputs = torch.empty(shape, dtype=torch.float32, device="cpu")
        drawn = None
        if draw is not None:
            drawn = torch.empty(inputs.shape, dtype=torch.int64, device="cpu")
        self._run(inputs, 1, None, position, False, states, outputs, draw, drawn)
        return outputs, drawn

    def _run(
        self,
        inputs: Tensor,
        count: int,
        lengths: Tensor | None,
        position: int | Tensor,
        begins: bool,
        states: Sequence[LinearAttentionState],
        outputs: Tensor,
        draw: Draw | None,
        drawn: Tensor | None,
    ) -> None:
        # Named here so that a copy, where one was needed, lives as long as the call.
        inputs = inputs.resolve_neg().contiguous()
        first = None if isinstance(position, int) else _positions(position, inputs.shape[0])
        lengths = None if lengths is None else lengths.contiguous()
        waits = None if draw is None or draw.waits is None else draw.waits.contiguous()
        uniform = None if draw is None or draw.uniform is None else draw.uniform.contiguous()
        self._native.run(
            inputs.shape[0],
            count,
            _address(lengths),
            _address(first),
            position if isinstance(position, int) else 0,
            begins,
            inputs.data_ptr(),
            self._addresses(states, inputs.shape[0]),
            outputs.data_ptr(),
            _address(waits),
            _address(uniform),
            1.0 if draw is None else draw.temperature,
            _address(drawn),
            torch.get_num_threads(),
        )
        written_in_place(*(x for state in states for x in state))

    def _addresses(self, states: Sequence[LinearAttentionState], batch: int) -> list[int]:
        """Those of each layer's s and z, once they are known to be what native code expects."""
        heads, dim = self._state_shape
        if len(states) != self._layers:
            raise ValueError(
                f"The state has {len(states)} layers and the decoder {self._layers}; "
                "it comes from another model."
            )
        found = []
        for s, z in states:
            if s.shape != (batch, heads, dim, dim) or z.shape != (batch, heads, dim):
                raise ValueError(
                    f"A layer's state was expected to have s {(batch, heads, dim, dim)} and z "
                    f"{(batch, heads, dim)} and has {tuple(s.shape)} and {tuple(z.shape)}."
                )
            for x in (s, z):
                if not (x.dtype == torch.float32 and x.is_cpu and x.is_contiguous()):
                    raise ValueError(
                        "A state was expected in contiguous float32 on the CPU and is "
                        f"{x.dtype} on {x.device} with strides {x.stride()}; "
                        "make it by .float() and .contiguous()."
                    )
                found.append(x.data_ptr())
        return found


def _positions(positions: Tensor, batch: int) -> Tensor:
    """One position a row, as native code reads them."""
    if positions.shape != (batch,) or positions.is_floating_point() or not positions.is_cpu:
        raise ValueError(
            f"A state's positions were expected to be {batch} integers on the CPU and are "
            f"{positions.dtype} of shape {tuple(positions.shape)} on {positions.device}."
        )
    return positions.long().contiguous()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _kept(tensor: Tensor, kept: list[Tensor]) -> int:
    """The address of a contiguous copy, or of the tensor itself, which `kept` holds on to."""
    kept.append(tensor.detach().contiguous())
    return kept[-1].data_ptr()


def _dense(affine: Affine, kept: list[Tensor]) -> _native.Dense:
    weight = affine.weight
    (inputs, outputs), (down, across) = weight.shape, weight.stride()
    return weight.data_ptr(), down, across, inputs, outputs, _kept(affine.bias, kept)


def _norm(norm: Norm, kept: list[Tensor]) -> _native.Norm:
    return _kept(norm.weight, kept), _kept(norm.bias, kept), norm.eps


def _layer(layer: DecoderLayer, kept: list[Tensor]) -> _native.Layer:
    return (
        _dense(layer.qkv, kept),
        _dense(layer.out, kept),
        _dense(layer.expand, kept),
        _dense(layer.contract, kept),
        _norm(layer.norm1, kept),
        _norm(layer.norm2, kept),
    )


def _token_coding(tokens: TokenCoding, kept: list[Tensor]) -> _native.TokenCoding:
    sampler = tokens.sampler
    return (
        [_kept(table, kept) for table in tokens.embeddings],
        _kept(tokens.positions, kept),
        _kept(tokens.start, kept),
        _dense(tokens.output, kept),
        tokens.embeddings[0].shape[0],
        tokens.positions.shape[0],
        0 if sampler is None else _HEADS[sampler.kind],
        0 if sampler is None else sampler.choices,
        0.0 if sampler is None else sampler.lowest_log_scale,
    )


def _tensors(description: DecoderDescription) -> Iterator[Tensor]:
    yield from (description.norm.weight, description.norm.bias)
    for layer in description.layers:
        for affine in (layer.qkv, layer.out, layer.expand, layer.contract):
            yield from (affine.weight, affine.bias)
        for norm in (layer.norm1, layer.norm2):
            yield from (norm.weight, norm.bias)
    tokens = description.tokens
    if tokens is not None:
        yield from (*tokens.embeddings, tokens.start, tokens.positions)
        yield from (tokens.output.weight, tokens.output.bias)
