"""A cache of compiled decoders, compiled again when their models have changed."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core import choice
from linattn_core.decoder_spec import DecoderDescription
from linattn_core.torch_private import version_of
from linattn_models.decoding.compile import compile_described
from linattn_models.decoding.model import TokenModel
from linattn_models.decoding.native import CompiledDecoder


@dataclass(frozen=True)
class _Packed:
    """A decoder and what it was packed from.

    The description keeps the model's tensors alive, so that no new tensor can get the same address
    and look unchanged.
    """

    decoder: CompiledDecoder
    description: DecoderDescription
    signature: tuple[Any, ...]


# Not an attribute of the models, so that copies, pickles and state dicts do not contain it.
_cache: weakref.WeakKeyDictionary[TokenModel, _Packed] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def packed_decoder(model: TokenModel, positions: int | None = None) -> CompiledDecoder:
    """The float32 decoder of the model with its current weights, for at least `positions`.

    Raises:
        CannotCompile: as for `compile_decoder`.

    Cost: if a weight, a layer, a setting or the head has changed since the last call, the weights
    are packed; otherwise they are read once, which takes about as long as one step.
    """
    description = model.describe(positions)
    with _lock:
        signature = _signature(model, description)
        packed = _cache.pop(model, None)
        if packed is None or packed.signature != signature:
            del packed  # frees its memory before the next is packed
            decoder = compile_described(model, description, "float32", "auto")
            packed = _Packed(cast(CompiledDecoder, decoder), description, signature)
        _cache[model] = packed
        return packed.decoder


def _signature(model: TokenModel, description: DecoderDescription) -> tuple[Any, ...]:
    """A value that changes whenever the decoder has to be compiled again."""
    tokens = description.tokens
    norms = [description.norm]
    for layer in description.layers:
        norms += [layer.norm1, layer.norm2]
    tensors = list(description.tensors())
    return (
        choice.current,
        model.config,
        model.head,
        model.max_length,
        None if tokens is None else tokens.sampler,
        description.feature_map,
        description.eps,
        description.activation,
        description.norm_first,
        tuple(norm.eps for norm in norms),
        tuple(_identity(x) for x in tensors),
        # Sums too, because writes through `.data` or into a NumPy view do not change the version.
        tuple(torch.stack([x.sum() for x in tensors]).tolist()),
    )


def _identity(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.device, version_of(x)
