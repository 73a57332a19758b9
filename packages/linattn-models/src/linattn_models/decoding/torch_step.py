"""A described model in as few torch operations as possible: on a GPU, each launches kernels.

A step never reads a number from the device, and all values that change from step to step are in
tensors, so that a CUDA graph can repeat it.

Letters as in `linattn_core.decoder_spec`; R rows: the vectors of a step, or of whole prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_core.autocast import without_autocast
from linattn_core.decoder_spec import (
    Affine,
    CannotCompile,
    DecoderDescription,
    DecoderLayer,
    Norm,
    TokenCoding,
)
from linattn_core.errors import expected
from linattn_models.packing import Packing, last_of
from linattn_models.state import zero_states

# The dtype of the layers' products. The head's products, norms, sums and states are float32.
_PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}

# From a layer's index and its queries, keys and values (R, 3 E) to the attended values (R, E).
Attend = Callable[[int, Tensor], Tensor]


class TorchStep:
    """A copy of a model's weights, with `step` and `prefill`.

    Args:
        description: the model.
        weights: "float32", or "bfloat16" for the layers' matrices and products.
        backend: the backend of the attention, as for `linear_attention`.

    Raises:
        CannotCompile: another dtype of weights.
    """

    def __init__(self, description: DecoderDescription, weights: str, backend: str) -> None:
        if weights not in _PRODUCTS:
            wanted = f"one of {', '.join(map(repr, _PRODUCTS))} for a decoder on a GPU"
            raise CannotCompile(expected("weights", wanted, repr(weights), "or compile on the CPU"))
        self.model: DecoderDescription = _copied(description, _PRODUCTS[weights])
        self.backend = backend
        self.device = description.device

    @property
    def nbytes(self) -> int:
        """Bytes of the copied weights."""
        return sum(x.nbytes for x in self.model.tensors())

    def zeros(self, batch: int) -> tuple[LinearAttentionState, ...]:
        """The states before the first position."""
        model = self.model
        layers = len(model.layers)
        return zero_states(layers, batch, model.num_heads, model.head_dim, self.device)

    def step(
        self, inputs: Tensor, position: Tensor, states: Sequence[LinearAttentionState]
    ) -> Tensor:
        """One input of each row, at positions (B,); updates the states in place.

        Args:
            inputs: tokens (B,) or (B, C), or vectors (B, E).

        Returns:
            (B, P), or for vectors (B, E).
        """
        tokens = self.model.tokens
        with without_autocast(self.device.type):
            if tokens is None:
                return self._layers(inputs.clone(), partial(self._attend_next, states))
            x = _embedded(tokens, inputs)  # (B, E)
            x.add_(tokens.positions.index_select(0, position))
            return _product(self._layers(x, partial(self._attend_next, states)), tokens.output)

    def prefill(
        self, inputs: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, list[LinearAttentionState]]:
        """Whole prompts, as `NativeDecoder.prefill`; also returns the states."""
        tokens = self.model.tokens
        states: list[LinearAttentionState] = []
        with without_autocast(self.device.type):
            x = inputs.clone() if tokens is None else _entered(tokens, inputs)  # (B, N, E)
            packing = None if lengths is None else Packing.of(lengths, x.shape[1])
            x = x if packing is None else packing.pack(x)  # (1, T, E)
            attend = partial(self._attend_all, (x.shape[0], x.shape[1]), packing, states)
            y = self._layers(x.flatten(0, 1), attend).view_as(x)
            if tokens is None:
                return y if packing is None else packing.unpack(y), states
            return _product(last_of(y, packing), tokens.output), states

    def _layers(self, x: Tensor, attend: Attend) -> Tensor:
        """(R, E) -> (R, E); overwrites `x`."""
        activation = _ACTIVATIONS[self.model.activation]
        for index, layer in enumerate(self.model.layers):
            attended = partial(attend, index)
            if self.model.norm_first:
                x.add_(_mixed(_normed(x, layer.norm1), layer, attended))
                x.add_(_fed_forward(_normed(x, layer.norm2), layer, activation))
            else:
                x = _normed(x.add_(_mixed(x, layer, attended)), layer.norm1)
                x = _normed(x.add_(_fed_forward(x, layer, activation)), layer.norm2)
        return _normed(x, self.model.norm)

    def _attend_next(
        self, states: Sequence[LinearAttentionState], index: int, projected: Tensor
    ) -> Tensor:
        heads, dim = self.model.num_heads, self.model.head_dim
        query, key, value = projected.view(-1, 3, heads, dim).unbind(1)  # (B, H, D) each, views
        attended, _ = linear_attention_step(
            query,
            key,
            value,
            states[index],
            feature_map=self.model.feature_map,
            eps=self.model.eps,
            backend=self.backend,
            inplace=True,
        )
        return attended.flatten(1)

    def _attend_all(
        self,
        rows: tuple[int, int],
        packing: Packing | None,
        states: list[LinearAttentionState],
        index: int,
        projected: Tensor,
    ) -> Tensor:
        """Whole prompts (B, N), or packed (1, T); appends the layer's state after them."""
        heads, dim = self.model.num_heads, self.model.head_dim
        by_head = projected.view(*rows, 3, heads, dim)
        query, key, value = by_head.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, N, D) each, views
        attended, state = linear_attention(
            query,
            key,
            value,
            is_causal=True,
            feature_map=self.model.feature_map,
            cu_seqlens=None if packing is None else packing.cu_seqlens,
            return_state=True,
            eps=self.model.eps,
            backend=self.backend,
        )
        states.append(state)
        return attended.transpose(1, 2).reshape(-1, heads * dim)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _product(x: Tensor, affine: Affine) -> Tensor:
    return torch.addmm(affine.bias, x.to(affine.weight.dtype), affine.weight)


def _mixed(x: Tensor, layer: DecoderLayer, attend: Callable[[Tensor], Tensor]) -> Tensor:
    return _product(attend(_product(x, layer.qkv)), layer.out)


def _fed_forward(x: Tensor, layer: DecoderLayer, activation: Callable[[Tensor], Tensor]) -> Tensor:
    return _product(activation(_product(x, layer.expand)), layer.contract)


def _embedded(coding: TokenCoding, tokens: Tensor) -> Tensor:
    """The vectors (B, E) of tokens (B,) or (B, C), in new memory."""
    if len(coding.embeddings) == 1:
        return coding.embeddings[0].index_select(0, tokens)
    x = coding.embeddings[0].index_select(0, tokens[:, 0])
    for channel, table in enumerate(coding.embeddings[1:], 1):
        x.add_(table.index_select(0, tokens[:, channel]))
    return x


def _entered(coding: TokenCoding, tokens: Tensor) -> Tensor:
    """The inputs (B, N + 1, E) of the start vector and tokens (B, N) or (B, N, C)."""
    batch, length = tokens.shape[:2]
    embedded = _embedded(coding, tokens.reshape(batch * length, *tokens.shape[2:]))
    start = coding.start.expand(batch, 1, -1)
    x = torch.cat([start, embedded.view(batch, length, start.shape[2])], 1)  # (B, N + 1, E)
    return x.add_(coding.positions[: length + 1])


def _copied(part: Any, dtype: torch.dtype) -> Any:
    """A part of a model with copied tensors: the layers' matrices and their biases in `dtype`."""
    if isinstance(part, Tensor):
        # The copy keeps strides: BLAS reads a transposed matrix equally fast.
        return part.detach().to(dtype, copy=True)
    if isinstance(part, tuple):
        return tuple(_copied(each, dtype) for each in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    dtype = torch.float32 if isinstance(part, (Norm, TokenCoding)) else dtype
    copies = {field.name: _copied(getattr(part, field.name), dtype) for field in fields(part)}
    return replace(part, **copies)
