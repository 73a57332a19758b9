"""The state of a transformer between two steps of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.validation import as_int, as_ints, at_least, instance
from linattn_models.state.cache import (
    KeyValueCache,
    LayerState,
    move_layer,
    named_tensors,
)
from linattn_models.state.cursor import Cursor
from linattn_models.state.files import StateContent, decode_state, encode_state, read_state_file
from linattn_models.weights.tensor_files import write_content

State = TypeVar("State")


@dataclass(frozen=True)
class DecodingState:
    """The state of a batch of sequences: `step` takes it and returns the next.

    Under `torch.no_grad` a step updates the tensors of its argument in place, so `clone()` a state
    that is needed again. With gradients on, a step does not change its argument.

    It is a pytree, so that a step can be exported. Numbers among its positions are constants of the
    exported program, unless another example shows that they vary:

        inputs = torch.export.AdditionalInputs()
        inputs.add((token, later_state))
        torch.export.export(module, (token, state), dynamic_shapes=inputs)

    where `module.forward` calls the model's `step`. With softmax attention such a program leaves
    the last position of the cache free.

    A model takes states of its own sizes, dtype and device, and, of those with a fingerprint, only
    those that its weights have made. It does not notice a state without one that another model of
    the same sizes has made. A step does not notice writes into weights that torch does not count,
    such as `p.data.copy_()`; `generate`, `stream`, `prefill` and `compile_decoder` do.

    Attributes:
        layers: for each layer a `LinearAttentionState` or a `WindowCache` (of fixed size), or a
            `KeyValueCache`, or the state of a registered attention; of a `Seq2SeqTransformer` then
            the sums over its source, which no step changes.
        cursor: the positions of the next inputs.
        max_length: the most positions; None for no limit.
        parameters: (B, P), of the distribution of the next token; None for a model of vectors.
        fingerprint: of the weights that made it, as the model's `fingerprint()`: their SHA-256;
            None if it is not known. States that `generate` and `stream` return have it, those of a
            decoder from `compile_decoder`, and those that continue one with it. No leaf of the
            pytree.
        recent: (B, 9) int64, the last tokens that each row has read; -1 where there were none, -2
            where they are not known. `prefill`, `generate`, `stream` and a batch set it, for the
            text of the tokens that follow; `step` does not. No leaf of the pytree.
    """

    layers: tuple[LayerState, ...]
    cursor: Cursor
    max_length: int | None = None
    parameters: Tensor | None = None
    fingerprint: str | None = None
    recent: Tensor | None = None

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self.layers[0][0].shape[0]

    @property
    def position(self) -> int | Tensor:
        """The number of inputs so far: an int, or (B,) int64 if rows differ."""
        return self.cursor.position

    def check_step(self, rows: int) -> None:
        """Refuses a step of another number of sequences, or past the last position."""
        if rows != self.batch:
            wanted = f"rows for the state's {self.batch} sequences"
            raise ValueError(expected("a step", wanted, f"inputs for {rows}"))
        if self.max_length is not None and self.cursor.furthest >= self.max_length:
            got = f"room for {self.max_length} positions and all are taken"
            advice = "start with a larger max_length"
            raise ValueError(expected("the state of a step", "a free position", got, advice))

    def index_select(self, indices: Tensor | Sequence[int]) -> DecodingState:
        """The states of the rows `indices`, as a copy; a repeated index forks a row.

        Args:
            indices: (new batch,) int64 or int32 rows, or a list of rows.

        Raises:
            ValueError: indices of another shape; on the CPU also a row that is not there.
            TypeError: not integers.

        Cost: a copy of the rows of the result.
        """
        indices = as_rows(indices).to(self.device)
        try:
            selected = self._map(
                lambda layer: layer.index_select(indices), lambda x: x.index_select(0, indices)
            )
            return replace(selected, cursor=self.cursor.index_select(indices))
        except IndexError:
            raise no_such_rows(indices, self.batch) from None

    @classmethod
    def cat(cls, states: Sequence[DecodingState]) -> DecodingState:
        """One state with the sequences of all `states`, in order; their positions may differ.

        Caches get the size of the largest cache.

        Raises:
            ValueError: no states, or states of different models, dtypes or devices.
            TypeError: not a list of states.

        Cost: a copy of all rows.
        """
        states = check_alike(states)
        layers = tuple(
            type(parts[0]).cat(parts)
            for parts in zip(*(state.layers for state in states), strict=True)
        )
        rows = [state.cursor.rows(state.batch, state.device) for state in states]
        rooms = [state.max_length for state in states]
        room = None if None in rooms else max(cast(list[int], rooms))
        parameters = _join([state.parameters for state in states])
        recent, fingerprint = _join([state.recent for state in states]), common_fingerprint(states)
        return cls(layers, Cursor.at(torch.cat(rows)), room, parameters, fingerprint, recent)

    def split(self, sizes: int | Sequence[int]) -> list[DecodingState]:
        """Splits the sequences into parts, in order: the inverse of `cat`.

        Args:
            sizes: as for `torch.split`: one number of sequences for all parts (the last may have
                fewer), or a list with the number of each part.

        Returns:
            Views of this state's memory, which change when the state is updated in place.

        Raises:
            ValueError: one size below 1, or a list with a size below 0 or whose sum is not the
                number of sequences.
            TypeError: not integers.
        """
        sizes = _sizes_of_parts(sizes, self.batch)
        rows = self.cursor.rows(self.batch, self.device).split(sizes)
        layers = zip(*(layer.split(sizes) for layer in self.layers), strict=True)
        parameters, recent = (
            [None] * len(rows) if x is None else x.split(sizes)
            for x in (self.parameters, self.recent)
        )
        return [
            replace(self, layers=part, cursor=Cursor.at(own), parameters=predicted, recent=last)
            for part, own, predicted, last in zip(layers, rows, parameters, recent, strict=True)
        ]

    def with_room(self, max_length: int | None) -> DecodingState:
        """The state with room for `max_length` positions; caches are copied to that size.

        Args:
            max_length: at least the positions taken so far; None for no limit, without caches.

        Raises:
            ValueError: fewer positions than are taken, or None with a cache.
        """
        caches = any(isinstance(layer, KeyValueCache) for layer in self.layers)
        if max_length is None and caches:
            advice = "a softmax cache is allocated for the longest sequence"
            raise ValueError(expected("max_length", "a number of positions", None, advice))
        if max_length is not None:
            max_length = at_least("max_length", max_length, max(1, self.cursor.furthest))
        layers = tuple(_with_room(layer, max_length) for layer in self.layers)
        return replace(self, layers=layers, max_length=max_length)

    def save(self, file: str | Path) -> None:
        """Writes the state into one safetensors file; if it fails, an older file stays.

        Raises:
            IsADirectoryError: a directory.
            OSError: the file cannot be written.
        """
        write_content(Path(file), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of the file that `save` writes."""
        return encode_state(self._tensors(), self.max_length, self.fingerprint)

    @classmethod
    def load(cls, file: str | Path, device: torch.device | str | None = None) -> DecodingState:
        """Loads a state that `save` wrote, onto the CPU or `device`; nothing is unpickled.

        Raises:
            FileNotFoundError: no such file.
            IsADirectoryError: a directory.
            ValueError: a damaged file, or one with other content.
        """
        state = cls._of(read_state_file(Path(file)))
        return state if device is None else state.to(device)

    @classmethod
    def from_bytes(cls, content: bytes) -> DecodingState:
        """The state that `to_bytes` wrote, or of the bytes of a file, on the CPU.

        Raises:
            ValueError: as `load`.
        """
        return cls._of(decode_state(content))

    @classmethod
    def _of(cls, content: StateContent) -> DecodingState:
        return cls(content.layers, Cursor.at(content.position), *content[2:])

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"position": self.cursor.rows(self.batch)}
        if self.parameters is not None:
            tensors["parameters"] = self.parameters
            # Values of pixels may be above the number of parameters, and have no text.
            levels, recent = self.parameters.shape[1], self.recent
            if recent is not None and not (recent >= levels).any():
                tensors["recent"] = recent
        for index, layer in enumerate(self.layers):
            for name, x in named_tensors(layer).items():
                tensors[f"layers.{index}.{name}"] = x
        return tensors

    def clone(self) -> DecodingState:
        """A copy that shares no memory with this state."""
        copied = self._map(lambda layer: layer.clone(), Tensor.clone)
        return replace(copied, cursor=self.cursor.clone())

    def detach(self) -> DecodingState:
        """The same memory, detached from autograd."""
        return self._map(lambda layer: layer.detach(), Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> DecodingState:
        """The state, moved or cast as by `torch.Tensor.to`, for a model that is cast alike.

        Positions are not cast. Sums are cast to float32 where half precision is asked for, because
        models of half precision sum in float32.
        """

        def move(layer: LayerState) -> LayerState:
            return move_layer(layer, *args, **kwargs)

        moved = self._map(move, lambda x: x.to(*args, **kwargs))
        recent = None if self.recent is None else self.recent.to(moved.device)
        return replace(moved, cursor=self.cursor.to(moved.device), recent=recent)

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return self.layers[0][0].device

    def _map(
        self, layer: Callable[[LayerState], LayerState], tensor: Callable[[Tensor], Tensor]
    ) -> DecodingState:
        parameters, recent = (
            None if x is None else tensor(x) for x in (self.parameters, self.recent)
        )
        layers = tuple(map(layer, self.layers))
        return replace(self, layers=layers, parameters=parameters, recent=recent)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers for the whole batch."""
        return sum(layer.nbytes for layer in self.layers)


def shape_of(state: DecodingState) -> list[tuple[object, ...]]:
    """The `layer_shape` of each layer."""
    return [layer_shape(layer) for layer in state.layers]


def layer_shape(layer: LayerState) -> tuple[object, ...]:
    """Type of a layer, and dtype, device and sizes of its tensors; without the batch and room."""
    sizes = (x.shape[1::2] if isinstance(layer, KeyValueCache) else x.shape[1:] for x in layer)
    places = ((x.dtype, x.device) for x in layer)
    return type(layer).__name__, *zip(places, map(tuple, sizes), strict=True)


def no_such_rows(indices: Tensor, batch: int) -> ValueError:
    """The error for indices of which some are not among the rows."""
    low, high = (int(bound) for bound in indices.aminmax())
    return ValueError(expected("indices", f"rows in 0..{batch - 1}", f"{low} to {high}"))


def as_rows(indices: object) -> Tensor:
    """The indices of rows as a tensor; whether the rows are there is not read."""
    if not isinstance(indices, Tensor):
        return torch.tensor(as_ints("indices", indices), dtype=torch.int64)
    if indices.dtype not in (torch.int64, torch.int32) or indices.ndim != 1:
        got = f"{tuple(indices.shape)} of {indices.dtype}"
        raise TypeError(expected("indices", "rows (new batch,) of torch.int64 or int32", got))
    return indices


def _sizes_of_parts(sizes: object, batch: int) -> int | list[int]:
    """The sizes of the parts of a split, checked as `torch.split` takes them."""
    single = as_int(sizes)
    if single is not None:
        return at_least("sizes", single, 1)
    several = as_ints("sizes", sizes)
    if sum(several) != batch or min(several, default=0) < 0:
        wanted = f"one size of at least 1, or a list that adds up to {batch} sequences"
        raise ValueError(expected("sizes", wanted, several))
    return several


def list_states(states: object, kind: type[State]) -> list[State]:
    """The states as a list of at least one, all of this kind."""
    if isinstance(states, kind) or not isinstance(states, Iterable):
        wanted = f"a list of {kind.__name__}"
        raise TypeError(expected("states", wanted, f"a {type(states).__name__}"))
    several = list(states)
    if not several:
        raise ValueError(expected("states", f"at least one {kind.__name__}", "none"))
    for state in several:
        instance("states", state, kind)
    return several


def check_alike(states: object) -> list[DecodingState]:
    """The states as a list, which must be of one model, dtype and device."""
    several = list_states(states, DecodingState)
    advice = "only states of one model, dtype and device are joined"
    first = shape_of(several[0])
    for state in several[1:]:
        if shape_of(state) != first:
            raise ValueError(expected("states", first, shape_of(state), advice))
    known = [state.parameters.shape[1] for state in several if state.parameters is not None]
    if len(set(known)) > 1:
        wanted = f"{known[0]} parameters of the next token in each"
        raise ValueError(expected("states", wanted, known, advice))
    common_fingerprint(several)
    return several


def common_fingerprint(states: Sequence[Any]) -> str | None:
    """That which all states have; None if one has none. Refuses states of different weights."""
    fingerprints = {state.fingerprint for state in states}
    if len(fingerprints - {None}) > 1:
        got = f"fingerprints of {len(fingerprints - {None})} models"
        raise ValueError(expected("states", "states that the same weights made", got))
    return None if None in fingerprints else states[0].fingerprint


def _join(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The rows of all parts; None where one has none."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


def _with_room(layer: LayerState, max_length: int | None) -> LayerState:
    if isinstance(layer, KeyValueCache) and max_length is not None:
        return layer.with_room(max_length)
    return layer
