"""The state of a layer between two steps of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.state import TensorTuple, accumulation_dtype


class _KeysAndValues(NamedTuple):
    keys: Tensor
    values: Tensor


class _Window(NamedTuple):
    keys: Tensor
    values: Tensor
    s: Tensor
    z: Tensor


class KeyValueCache(TensorTuple, _KeysAndValues):
    """The keys and values of one softmax layer, allocated for the longest sequence.

    Attributes:
        keys: (B, H_kv, max_length, D); positions that are not written yet hold zeros.
        values: (B, H_kv, max_length, D).
    """

    __slots__ = ()

    @classmethod
    def zeros(
        cls,
        batch: int,
        heads: int,
        max_length: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> KeyValueCache:
        """The cache before the first key, for `max_length` positions."""
        keys = torch.zeros(batch, heads, max_length, head_dim, dtype=dtype, device=device)
        return cls(keys, torch.zeros_like(keys))

    @classmethod
    def cat(cls, states: Sequence[KeyValueCache]) -> KeyValueCache:
        """One cache with the sequences of all `states`, in order, as long as the longest cache."""
        room = max(state.max_length for state in states)
        return super().cat([state.with_room(room) for state in states])

    def with_room(self, max_length: int) -> KeyValueCache:
        """The cache resized to `max_length` positions (itself if it has them); new ones are 0."""
        more = max_length - self.max_length
        if more == 0:
            return self
        return KeyValueCache(*(F.pad(x, (0, 0, 0, more)) for x in self))

    @property
    def max_length(self) -> int:
        """The number of positions that the cache has room for."""
        return self.keys.shape[2]


class WindowCache(TensorTuple, _Window):
    """A window of w keys and values, and the sums over all keys before them: of fixed size.

    Attributes:
        keys: (B, H_kv, w, D); that of position p is in slot p mod w, and slots that are not written
            yet hold zeros. Of a gated decay (B, H_kv, w, D + 1): the log_decay of its position
            follows each key.
        values: (B, H_kv, w, D).
        s: (B, H_kv, F, D), the sums over the keys that have left the window.
        z: (B, H_kv, F).
    """

    __slots__ = ()

    @classmethod
    def zeros(
        cls,
        batch: int,
        heads: int,
        window_size: int,
        features: int,
        head_dim: int,
        *,
        gated: bool = False,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> WindowCache:
        """The cache before the first key; the sums are in the dtype that `dtype` is summed in."""
        keys, values = (
            torch.zeros(batch, heads, window_size, size, dtype=dtype, device=device)
            for size in (head_dim + gated, head_dim)
        )
        sums = LinearAttentionState.zeros(
            batch, heads, features, head_dim, dtype=dtype, device=device
        )
        return cls(keys, values, *sums)

    @property
    def sums(self) -> LinearAttentionState:
        """S and z."""
        return LinearAttentionState(self.s, self.z)

    @property
    def log_decays(self) -> Tensor:
        """What follows the keys of a gated decay, (B, H_kv, w, 1); of others (B, H_kv, w, 0)."""
        return self.keys[..., self.values.shape[-1] :]

    def to(self, *args: Any, **kwargs: Any) -> WindowCache:
        """The cache moved or cast as by `torch.Tensor.to`, but sums never to half precision."""
        return move_layer(self, *args, **kwargs)


# The states of fixed size that compiled decoders have.
FixedState = LinearAttentionState | WindowCache
# The state of any layer: one of those here, or of a registered attention; a named tuple.
LayerState = TensorTuple
Layer = TypeVar("Layer", bound=LayerState)


def named_tensors(layer: LayerState) -> dict[str, Tensor]:
    """The tensors of the state by the names of its fields."""
    return dict(cast(Any, layer)._asdict())


def move_layer(layer: Layer, *args: Any, **kwargs: Any) -> Layer:
    """The state moved or cast as by `torch.Tensor.to`, but sums to float32, not half precision.

    Models of half precision sum in float32.
    """
    moved = {name: x.to(*args, **kwargs) for name, x in named_tensors(layer).items()}
    for name in moved.keys() & {"s", "z"}:
        wide = accumulation_dtype(moved[name].dtype)
        if wide != moved[name].dtype:  # the numbers before they were rounded
            moved[name] = getattr(layer, name).to(moved[name].device, wide, copy=True)
    return type(layer)(**moved)


def zero_states(
    layers: int, shapes: Sequence[tuple[int, ...]], device: torch.device
) -> tuple[FixedState, ...]:
    """The states of fixed size before the first position, float32, one per layer.

    Args:
        shapes: of the tensors of a layer, as `DecoderDescription.state_shapes` has them.
    """
    kind: type[FixedState] = WindowCache if len(shapes) > 2 else LinearAttentionState
    return tuple(
        kind(*(torch.zeros(shape, dtype=torch.float32, device=device) for shape in shapes))
        for _ in range(layers)
    )
