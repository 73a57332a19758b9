"""A decoding state on disk: one safetensors file; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.errors import expected, quote
from linattn_core.state import FLOATS, TensorTuple
from linattn_core.torch_private import register_namedtuple
from linattn_models.state.cache import KeyValueCache, LayerState, WindowCache
from linattn_models.state.recent import RECENT, UNKNOWN
from linattn_models.weights.tensor_files import decode_tensors, encode_tensors, read_tensors

FORMAT = "linattn decoding state"
VERSION = "1"
_OURS = (LinearAttentionState, KeyValueCache, WindowCache)
_KINDS: dict[frozenset[str], type[LayerState]] = {frozenset(x._fields): x for x in _OURS}
_WHOLE = "a whole file that DecodingState.save wrote"


def known_states() -> list[type[LayerState]]:
    """The classes of states that a file may hold."""
    return list(_KINDS.values())


def register_state(kind: type[LayerState]) -> None:
    """Makes a class of states known, so that files and exported programs may hold them.

    Raises:
        TypeError: not a named tuple that derives from `TensorTuple`.
        ValueError: another state has the same fields, by which a file tells them apart.
    """
    names = getattr(kind, "_fields", ())
    if not isinstance(kind, type) or not issubclass(kind, TensorTuple) or not names:
        wanted = "a class that derives from TensorTuple and a NamedTuple"
        raise TypeError(expected("state", wanted, quote(kind)))
    other = _KINDS.get(frozenset(names), kind)
    if other is not kind:
        wanted, got = "fields that no other state has", f"{names}, as {other.__name__} has"
        raise ValueError(expected(f"state {kind.__name__}", wanted, got, "rename one"))
    if kind not in known_states():
        register_namedtuple(kind, f"{kind.__module__}.{kind.__qualname__}")
        _KINDS[frozenset(names)] = kind


class StateContent(NamedTuple):
    """The content of a file.

    Attributes:
        layers: the layers of the state.
        position: (B,) int64.
        max_length: the most positions, or None.
        parameters: (B, P), or None.
        fingerprint: of the weights, or None.
        recent: (B, 9) int64, the last tokens, or None.
    """

    layers: tuple[LayerState, ...]
    position: Tensor
    max_length: int | None
    parameters: Tensor | None
    fingerprint: str | None
    recent: Tensor | None


def encode_state(
    tensors: Mapping[str, Tensor], max_length: int | None, fingerprint: str | None
) -> bytes:
    """The content of a file with the tensors, named as the next two functions read them."""
    room = "" if max_length is None else str(max_length)
    metadata = {"format": FORMAT, "version": VERSION, "max_length": room}
    if fingerprint is not None:
        metadata["fingerprint"] = fingerprint
    return encode_tensors(tensors, metadata)


def read_state_file(file: Path) -> StateContent:
    """The content of a file, after checks."""
    return _check(str(file), *read_tensors(file, _WHOLE, file_format=FORMAT))


def decode_state(content: bytes) -> StateContent:
    """As `read_state_file`, from the bytes of the file."""
    return _check("state", *decode_tensors("state", content, _WHOLE, FORMAT))


def _check(file: str, tensors: dict[str, Tensor], metadata: dict[str, str]) -> StateContent:
    """The content of a file of this name."""
    if metadata.get("version") != VERSION:
        got = f"version {quote(metadata.get('version'))}"
        raise ValueError(expected(file, f"version {VERSION}", got, "update linattn-models"))
    names = ("position", "parameters", "recent")
    position, parameters, recent = (tensors.pop(name, None) for name in names)
    layers = _layers(file, tensors)
    max_length = _max_length(file, metadata.get("max_length", ""), layers)
    if position is None or position.dtype != torch.int64:
        raise _refusal(file, "one without positions")
    if parameters is not None and parameters.dtype not in FLOATS:
        raise _refusal(file, f"parameters of {parameters.dtype}")
    for what, x in zip(names, (position, parameters, recent), strict=True):
        _check_rows(file, what, x, layers[0][0].shape[0], 1 if what == "position" else 2)
    _check_recent(file, recent, parameters)
    low, high = (int(bound) for bound in position.aminmax())
    if low < 0 or (max_length is not None and high > max_length):
        raise _refusal(file, f"positions {low} to {high} with room for {max_length}")
    fingerprint = metadata.get("fingerprint")
    return StateContent(layers, position, max_length, parameters, fingerprint, recent)


def _layers(file: str, tensors: dict[str, Tensor]) -> tuple[LayerState, ...]:
    layers: list[LayerState] = []
    while tensors:
        prefix = f"layers.{len(layers)}."
        own = {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        layers.append(_layer(file, {name.removeprefix(prefix): x for name, x in own.items()}))
    if not layers or len({layer[0].shape[0] for layer in layers}) > 1:
        raise _refusal(file, "no layers, or layers of different batches")
    return tuple(layers)


def _layer(file: str, tensors: dict[str, Tensor]) -> LayerState:
    kind = _KINDS.get(frozenset(tensors))
    numbers = all(x.is_floating_point() and x.numel() for x in tensors.values())
    if kind is None:
        advice = "import what registers its attention"
        got = f"a layer of {', '.join(map(quote, sorted(tensors)))}"
        raise ValueError(expected(file, _WHOLE, got, advice))
    batches = {x.shape[:1] for x in tensors.values()}
    alike = len(batches) == 1 and () not in batches
    if not numbers or not alike or (kind in _OURS and not _fit_together(**tensors)):
        shapes = {name: tuple(x.shape) for name, x in tensors.items()}
        raise _refusal(file, f"a layer of {shapes}")
    return kind(**tensors)


def _fit_together(
    keys: Tensor | None = None,
    values: Tensor | None = None,
    s: Tensor | None = None,
    z: Tensor | None = None,
) -> bool:
    """Whether the tensors of a layer have the shapes and dtypes of one."""
    if keys is not None and (values is None or values.ndim != 4):
        return False
    if s is None or z is None:
        return keys is None or keys.shape == cast(Tensor, values).shape
    if s.ndim != 4 or z.shape != s.shape[:3] or z.dtype != s.dtype:
        return False
    if keys is None or values is None:
        return True
    *sizes, dim = values.shape
    whole = [(*sizes, dim), (*sizes, dim + 1)]  # with the decay of each position
    return keys.shape in whole and values.shape[:2] + values.shape[3:] == s.shape[:2] + s.shape[3:]


def _max_length(file: str, text: str, layers: tuple[LayerState, ...]) -> int | None:
    if text and not (text.isdecimal() and len(text) < 19):
        raise _refusal(file, f"max_length {quote(text)}")
    max_length = int(text) if text else None
    for layer in layers:
        if isinstance(layer, KeyValueCache) and layer.max_length != max_length:
            raise _refusal(file, f"a cache of {layer.max_length} positions for {max_length}")
    return max_length


def _check_rows(file: str, what: str, x: Tensor | None, batch: int, dims: int) -> None:
    if x is not None and (x.ndim != dims or x.shape[0] != batch):
        raise _refusal(file, f"{what} of shape {tuple(x.shape)} for {batch} sequences")


def _check_recent(file: str, recent: Tensor | None, parameters: Tensor | None) -> None:
    """Refuses what are no tokens of a model with so many parameters."""
    if recent is None:
        return
    levels = 0 if parameters is None else parameters.shape[1]
    if recent.dtype != torch.int64 or recent.shape[1] != RECENT:
        raise _refusal(file, f"recent tokens of {recent.dtype} and shape {tuple(recent.shape)}")
    low, high = (int(bound) for bound in recent.aminmax())
    if low < UNKNOWN or high >= levels:
        raise _refusal(file, f"recent tokens {low} to {high} of {levels}")


def _refusal(file: str, got: str) -> ValueError:
    return ValueError(expected(file, _WHOLE, got))
