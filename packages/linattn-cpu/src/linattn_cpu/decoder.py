"""The compiled decoder: weights packed once, and any number of positions in one native call.

The dtypes of packed matrices are

- float32: the model's outputs to rounding;
- bfloat16: each weight is rounded by at most 2^-8 of itself. Activations stay in float32, except on
  a machine with AVX512-BF16: there, products of 16 rows or more (with AMX, of 9 or more) round
  activations to bfloat16 too;
- int8: 127 levels on either side of zero for each output of a matrix, so each weight is rounded by
  at most 1/254 of that output's largest weight. Activations are rounded to 16-bit integers, by at
  most 2^-16 of the largest in their row; on arm64 they stay in float32.

Biases, norms, embeddings and positions are always float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from linattn_core.decoder_spec import (
    Affine,
    DecoderDescription,
    DecoderLayer,
    DecoderState,
    Draw,
    NativeDecoder,
    Norm,
    Sampler,
    TokenCoding,
)
from linattn_core.errors import expected, quote
from linattn_core.native import address, check_memory, mark_written
from linattn_cpu import _native

# For so many inputs, the sum of the products of 8 by 8 bits still fits into 32 bits.
_MOST_INT8_INPUTS = 65_536
_CPU = torch.device("cpu")
# Native code has no name for "hedgehog": it takes a layer's own map before the one of this name.
_IDENTITY = _native.FeatureMap.__members__["identity"]
_MAPS = {**_native.FeatureMap.__members__, "hedgehog": _IDENTITY}
# The fields of a native call for those of a `Draw`, in order.
_DRAW_FIELDS = ("temperatures", "quantiles", "top_ks", "top_ps", "min_ps")
# A call makes at most so many steps, and reads at most so many bytes of weights: enough to make the
# time around the call small, and few enough that steps behind a sequence's end cost little.
_MOST_STEPS = 64
_MOST_BYTES = 64 << 20


def refuses_decoder(description: DecoderDescription, weights: str) -> str | None:
    """None to accept the model, else the reason as a sentence."""
    for what, name, known in (
        ("weights", weights, [*_native.WeightFormat.__members__]),
        ("feature map", description.feature_map, [*_MAPS]),
        ("activation", description.activation, [*_native.Activation.__members__]),
    ):
        if name not in known:
            return expected(what, f"one of {', '.join(known)}", quote(name))
    hidden = description.layers[0].contract.weight.shape[0]
    if weights == "int8" and hidden > _MOST_INT8_INPUTS:
        wanted = f"products that sum at most {_MOST_INT8_INPUTS:,} inputs exactly"
        advice = "keep the weights as bfloat16 or float32"
        return expected("int8 weights", wanted, f"{hidden:,} inputs", advice)
    for tensor in description.tensors():
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
            got = f"{tensor.dtype} on {tensor.device}"
            return expected("the model", "float32 on the CPU", got, "convert it by .float().cpu()")
    return None


class CpuDecoder(NativeDecoder):
    """Decodes on the CPU; see `linattn_core.decoder_spec.NativeDecoder` for the methods.

    The weights are packed for the instruction set in use when the decoder is made, and the decoder
    keeps that instruction set. Packing reads each weight once (int8: twice), on all of torch's
    threads.
    """

    def __init__(self, description: DecoderDescription, weights: str) -> None:
        self._kinds = len(description.state_shapes(1))  # of tensors in the state of a layer
        tokens = description.tokens
        norm = description.norm
        self._width = norm.weight.shape[0] if tokens is None else tokens.output.weight.shape[1]
        self._sequential = tokens is None
        self._begins = tokens is not None and tokens.start is not None
        packing, tensors = _Packing(), list(description.tensors())
        check_memory(["weights"] * len(tensors), tensors)
        self._native = _native.Decoder(packing.model(description, weights), torch.get_num_threads())

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, embeddings and positions."""
        return self._native.nbytes

    @property
    def instruction_set(self) -> str:
        """The instruction set for which the weights were packed, and with which steps run."""
        return self._native.instruction_set

    @property
    def most_steps(self) -> int:
        return max(1, min(_MOST_STEPS, _MOST_BYTES // max(1, self.nbytes)))

    @property
    def has_filters(self) -> bool:
        return True

    def check(self, states: Sequence[DecoderState]) -> None:
        for x in (x for state in states for x in state):
            _check_memory(x)

    def prefill(
        self, inputs: Tensor, lengths: Tensor | None, states: Sequence[DecoderState]
    ) -> Tensor:
        batch, length = inputs.shape[0], inputs.shape[1]
        shape = (batch, length, self._width) if self._sequential else (batch, self._width)
        # The padding of vectors has no outputs.
        make = torch.zeros if self._sequential and lengths is not None else torch.empty
        outputs = make(shape, dtype=torch.float32, device=_CPU)
        begins = self._begins
        self._run(inputs, length + begins, lengths, 0, begins, states, outputs)
        return outputs

    def read(
        self,
        tokens: Tensor,
        lengths: Tensor | None,
        position: int | Tensor,
        states: Sequence[DecoderState],
    ) -> Tensor:
        outputs = torch.zeros((tokens.shape[0], self._width), dtype=torch.float32, device=_CPU)
        self._run(tokens, tokens.shape[1], lengths, position, False, states, outputs)
        return outputs

    def step(
        self,
        inputs: Tensor,
        position: int | Tensor,
        states: Sequence[DecoderState],
        draw: Draw | None,
    ) -> tuple[Tensor, Tensor | None]:
        outputs = torch.empty((inputs.shape[0], self._width), dtype=torch.float32, device=_CPU)
        drawn = None if draw is None else inputs.new_empty(inputs.shape)
        self._run(inputs, 1, None, position, False, states, outputs, draw, drawn)
        return outputs, drawn

    def steps(
        self,
        tokens: Tensor,
        position: int | Tensor,
        states: Sequence[DecoderState],
        draw: Draw,
        count: int,
    ) -> tuple[Tensor, Tensor]:
        shape = (count, tokens.shape[0], self._width)
        outputs = torch.empty(shape, dtype=torch.float32, device=_CPU)
        drawn = tokens.new_empty((count, *tokens.shape))
        self._run(tokens, 1, None, position, False, states, outputs, draw, drawn, steps=count)
        return outputs, drawn

    def _run(
        self,
        inputs: Tensor,
        length: int,
        lengths: Tensor | None,
        position: int | Tensor,
        begins: bool,
        states: Sequence[DecoderState],
        outputs: Tensor,
        draw: Draw | None = None,
        drawn: Tensor | None = None,
        *,
        steps: int = 1,
    ) -> None:
        # Variables keep possible copies alive until the call returns.
        check_memory(("tokens", "lengths"), (inputs, lengths))
        inputs = inputs.resolve_neg().contiguous()
        positions = None if isinstance(position, int) else _positions(position, inputs.shape[0])
        lengths = None if lengths is None else lengths.contiguous()
        draws = () if draw is None else [x.contiguous() for x in draw[:5]]
        sums = [x for state in states for x in state]
        addresses, kinds = [x.data_ptr() for x in sums], self._kinds
        ring = {} if kinds == 2 else {"keys": addresses[::kinds], "values": addresses[1::kinds]}
        self._native.run(
            {
                "batch": inputs.shape[0],
                "inputs": length,
                "lengths": address(lengths),
                "positions": address(positions),
                "position": position if positions is None else 0,
                "begins": begins,
                "vectors" if self._sequential else "tokens": inputs.data_ptr(),
                "s": addresses[kinds - 2 :: kinds],
                "z": addresses[kinds - 1 :: kinds],
                **ring,
                "outputs": outputs.data_ptr(),
                **{name: x.data_ptr() for name, x in zip(_DRAW_FIELDS, draws, strict=False)},
                "drawn": address(drawn),
                "steps": steps,
                "threads": torch.get_num_threads(),
            }
        )
        mark_written(*sums)


def _check_memory(x: Tensor) -> None:
    """Refuses a tensor of a state whose memory does not hold its numbers, one after the other."""
    if x.is_neg():
        advice = "call .resolve_neg() of its tensors"
        raise ValueError(expected("a state", "numbers in memory", "a negated view", advice))
    if x.dtype is not torch.float32 or not x.is_cpu or not x.is_contiguous():
        got = f"{x.dtype} on {x.device} with strides {x.stride()}"
        advice = "convert it by .float(), .cpu() and .contiguous()"
        raise ValueError(expected("a state", "contiguous float32 on the CPU", got, advice))
    check_memory(("state",), (x,))


def _positions(positions: Tensor, batch: int) -> Tensor:
    """The positions (batch,) as native code reads them: contiguous int64."""
    if positions.shape != (batch,) or positions.is_floating_point() or not positions.is_cpu:
        got = f"{positions.dtype} of shape {tuple(positions.shape)} on {positions.device}"
        raise ValueError(expected("a state's positions", f"{batch} integers on the CPU", got))
    return positions.long().contiguous()


class _Packing:
    """The addresses of a model for native code, valid as long as this object lives."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def model(self, description: DecoderDescription, weights: str) -> _native.Fields:
        tokens = description.tokens
        return {
            "format": _native.WeightFormat.__members__[weights],
            "heads": description.num_heads,
            "kv_heads": description.num_kv_heads,
            "head_dim": description.head_dim,
            "hidden": description.layers[0].expand.weight.shape[1],
            "features": description.num_features,
            "map": _MAPS[description.feature_map],
            "eps": description.eps,
            "norm_first": description.norm_first,
            "activation": _native.Activation.__members__[description.activation],
            "gated": description.layers[0].gate is not None,
            "window": description.window_size,
            "frequencies": description.rotary_frequencies or (),
            "layers": [self._layer(layer) for layer in description.layers],
            "norm": self._norm(description.norm),
            "tokens": None if tokens is None else self._token_coding(tokens),
        }

    def _layer(self, layer: DecoderLayer) -> _native.Fields:
        return {
            "qkv": self._affine(layer.qkv),
            "out": self._affine(layer.out),
            "expand": self._affine(layer.expand),
            "contract": self._affine(layer.contract),
            "gate": None if layer.gate is None else self._affine(layer.gate),
            "decay_logits": self._optional(layer.decay_logits),
            "decay_weight": self._optional(layer.decay_weight),
            "log_gamma": self._optional(layer.log_gamma),
            "query_map": self._optional(layer.query_map),
            "key_map": self._optional(layer.key_map),
            "norm1": self._norm(layer.norm1),
            "norm2": self._norm(layer.norm2),
        }

    def _token_coding(self, tokens: TokenCoding) -> _native.Fields:
        sampler = tokens.sampler or Sampler("categorical", choices=0)
        return {
            "embeddings": [self._contiguous(table) for table in tokens.embeddings],
            "positions": self._optional(tokens.positions),
            "start": self._optional(tokens.start),
            "output": self._affine(tokens.output),
            "levels": tokens.embeddings[0].shape[0],
            "max_length": 0 if tokens.positions is None else len(tokens.positions),
            "head": _native.Head.__members__["none" if tokens.sampler is None else sampler.kind],
            "choices": sampler.choices,
            "lowest_log_scale": sampler.lowest_log_scale,
        }

    def _affine(self, affine: Affine) -> _native.Fields:
        weight = affine.weight
        inputs, outputs = weight.shape
        return {
            "weight": (weight.data_ptr(), *weight.stride()),
            "inputs": inputs,
            "outputs": outputs,
            "bias": self._optional(affine.bias),
        }

    def _norm(self, norm: Norm) -> _native.Fields:
        return {
            "weight": self._contiguous(norm.weight),
            "bias": self._optional(norm.bias),
            "eps": norm.eps,
            "centered": norm.centered,
        }

    def _optional(self, tensor: Tensor | None) -> int:
        return 0 if tensor is None else self._contiguous(tensor)

    def _contiguous(self, tensor: Tensor) -> int:
        """The address of the tensor, or of a contiguous copy."""
        self._tensors.append(tensor.detach().contiguous())
        return self._tensors[-1].data_ptr()
