"""What all kinds of attention share: projections, `forward`, `prefill` and `step`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from linattn_core.decoder_spec import Affine, CannotCompile
from linattn_models.attention.projections import join_heads, resolve_kv_heads, split_heads
from linattn_models.attention.rotary import Rotation
from linattn_models.basics.packing import Packing, last_of
from linattn_models.state import Cursor, LayerState


class Mixer(nn.Module, ABC):
    """Multi-head attention from (B, N, E) to (B, N, E); a subclass says how heads attend.

    It is built as `Subclass(attention, num_heads, head_dim, is_causal=..., **settings)`. A subclass
    has `attend`; one that can step also `initial_state`, `attend_and_keep` and `attend_next`, which
    a `Transformer` calls only where the configuration's `cannot_step` is empty. It overrides
    `split` where it needs more of x than queries, keys and values: the further tensors of a
    position follow the other arguments of these three methods.

    Args:
        num_heads, head_dim: H and D; E = H D.
        is_causal: whether position i sees only positions up to i.
        num_kv_heads: H_kv, a divisor of H; None for H.
        causal_block: a position sees its whole block of this size, and all positions before it.
        bias: whether the projections have biases.

    Attributes:
        qkv: torch.nn.Linear to the projections, concatenated.
        out: torch.nn.Linear with H D inputs.
        spread: standard deviation of the initial queries and keys, for normalized inputs.
        projections: 3 for queries, keys and values; 2 where queries and keys share a projection.
    """

    spread = 1.0
    projections = 3

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        is_causal: bool,
        num_kv_heads: int | None = None,
        causal_block: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = resolve_kv_heads(num_heads, num_kv_heads)
        self.head_dim = head_dim
        self.heads = (num_heads, *[self.num_kv_heads] * (self.projections - 1))
        embed_dim = num_heads * head_dim
        self.qkv = nn.Linear(embed_dim, sum(self.heads) * head_dim, bias=bias)
        self.out = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.is_causal = is_causal
        self.causal_block = causal_block

    @property
    def num_compared(self) -> int:
        """Outputs of `qkv` that are queries or keys; those after them are values."""
        return sum(self.heads[:-1]) * self.head_dim

    @abstractmethod
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """All positions at once: query (B, H, N, D), key and value (B, H_kv, N, D).

        Args:
            lengths: (B,) int, positions at or past a row's length are padding; None for N. Where
                attention is causal, no real position sees them.
            mask: (B, N) bool, False at padding on any side, or None.

        Returns:
            (B, H, N, D); at padding any numbers.
        """

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """The state before the first position, a `TensorTuple` whose tensors are (B, ...).

        `max_length` is the most positions, or None; `dtype` is that of keys and values.
        """
        raise NotImplementedError

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, from a state or None; also the state after each row's own positions.

        The rows start at `cursor`.
        """
        raise NotImplementedError

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """One more position, (B, H, D) and (B, H_kv, D) twice -> (B, H, D), and the next state.

        The state may be updated in place, where `is_writable` says so of its tensors.
        """
        raise NotImplementedError

    def split(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, ...]:
        """x (..., E) -> query (..., H, D), key and value (..., H_kv, D).

        A rotation turns queries and keys.

        An override may return after them what else `attend` needs of a position, such as gates
        (..., H) or (..., H_kv, any sizes).
        """
        parts = split_heads(self.qkv(x), self.heads, self.head_dim, rotation)
        return parts[0], parts[-2], parts[-1]

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, ...]:
        """x (B, N, E) -> query (B, H, N, D), key and value (B, H_kv, N, D); see `split`."""
        return tuple(part.transpose(1, 2) for part in self.split(x, rotation))

    def join(self, heads: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, N, E)."""
        joined: Tensor = self.out(join_heads(heads))
        return joined

    def forward(
        self,
        x: Tensor,
        key_lengths: Tensor | None = None,
        attn_mask: Tensor | None = None,
        rotation: Rotation | None = None,
        causal_block: int | None = None,
    ) -> Tensor:
        """(B, N, E) -> (B, N, E), all positions at once.

        With `causal_block`, of linear attention without a window, and of softmax attention with a
        `past_size`, blocks of another size than the configuration's.
        """
        options: dict[str, Any] = {} if causal_block is None else {"causal_block": causal_block}
        query, key, value, *more = self.project(x, rotation)
        return self.join(self.attend(query, key, value, key_lengths, attn_mask, *more, **options))

    def prefill(
        self,
        x: Tensor,
        packing: Packing | None,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
        last_only: bool = False,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, LayerState]:
        """As `forward`, starting from a state or None; also the state after each row.

        Args:
            x: whole rows (B, N, E), or with a packing packed ones (1, T, E).
            last_only: return only the output at each row's last position, (B, E).
        """
        projected = self.project(x, rotation)
        if packing is None:
            heads, after = self._attend_and_keep(projected, None, max_length, state, cursor)
        else:
            heads, after = self.attend_packed(projected, packing, max_length, state, cursor)
        if not last_only:
            return self.join(heads), after
        return self.out(last_of(heads.transpose(1, 2), packing).flatten(1)), after

    def step(
        self, x: Tensor, state: LayerState, cursor: Cursor, rotation: Rotation | None = None
    ) -> tuple[Tensor, LayerState]:
        """One more position: (B, E) -> (B, E), and the next state."""
        query, key, value, *more = self.split(x, rotation)
        heads, state = self.attend_next(query, key, value, state, cursor, *more)
        return self.out(heads.flatten(1)), state

    def attend_packed(
        self,
        projected: tuple[Tensor, ...],
        packing: Packing,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend_and_keep` for packed rows, (1, H, T, D); here on rows that are padded."""
        padded = tuple(packing.unpack(x.transpose(1, 2)).transpose(1, 2) for x in projected)
        heads, after = self._attend_and_keep(padded, packing.lengths, max_length, state, cursor)
        return packing.pack(heads.transpose(1, 2)).transpose(1, 2), after

    def _attend_and_keep(
        self,
        projected: tuple[Tensor, ...],
        lengths: Tensor | None,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        query, key, value, *more = projected
        return self.attend_and_keep(query, key, value, lengths, max_length, state, cursor, *more)

    def describe(self) -> tuple[Affine, Affine]:
        """The two projections, `qkv` and `out`, for a backend that compiles whole steps."""
        raise CannotCompile(f"{type(self).__name__} has no compiled step.")


def is_writable(x: Tensor) -> bool:
    """Whether a step may update this tensor of a state in place: autograd needs the old one."""
    return not torch.is_grad_enabled() and not is_locked(x)


def is_locked(x: Tensor) -> bool:
    """Whether x was made in inference mode, outside of which torch neither writes nor saves it."""
    if torch.compiler.is_compiling():  # there is no mode to ask for in a graph
        return False
    return x.is_inference() and not torch.is_inference_mode_enabled()
