"""What all kinds of attention share: projections, `forward`, `prefill` and `step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from linattn_core.decoder_spec import Affine, CannotCompile
from linattn_models.attention.projections import join_heads, resolve_kv_heads, split_heads
from linattn_models.attention.rotary import Rotation
from linattn_models.basics.packing import Packing, last_of
from linattn_models.state import Cursor, LayerState


class Mixer(nn.Module):
    """Multi-head attention from (B, N, E) to (B, N, E); a subclass says how heads attend.

    A subclass has `attend`: (query, key, value, lengths, mask) -> (B, H, N, D). One that can step
    also has

        initial_state    (batch, max_length, device, dtype) -> the state before the first position
        attend_and_keep  (query, key, value, lengths, max_length, state, cursor) -> as `attend`, and
                         the next state
        attend_next      (query, key, value, (B, H, D) each, state, cursor) -> (B, H, D), and the
                         next state

    Queries are (B, H, N, D), keys and values (B, H_kv, N, D). A `Transformer` calls those of the
    second kind only where the configuration's `cannot_step` is empty.

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
    attend: Callable[..., Tensor]
    initial_state: Callable[..., LayerState]
    attend_and_keep: Callable[..., tuple[Tensor, LayerState]]
    attend_next: Callable[..., tuple[Tensor, LayerState]]

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

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, ...]:
        """The projections of x (B, N, E), (B, H or H_kv, N, D) each; a rotation turns all but V."""
        parts = split_heads(self.qkv(x), self.heads, self.head_dim, rotation)
        return tuple(part.transpose(1, 2) for part in parts)

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
        options = {} if causal_block is None else {"causal_block": causal_block}
        projected = self.project(x, rotation)
        return self.join(self.attend(*projected, key_lengths, attn_mask, **options))

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
            heads, state = self.attend_and_keep(*projected, None, max_length, state, cursor)
        else:
            heads, state = self.attend_packed(projected, packing, max_length, state, cursor)
        if not last_only:
            return self.join(heads), state
        return self.out(last_of(heads.transpose(1, 2), packing).flatten(1)), state

    def step(
        self, x: Tensor, state: LayerState, cursor: Cursor, rotation: Rotation | None = None
    ) -> tuple[Tensor, LayerState]:
        """One more position: (B, E) -> (B, E), and the next state."""
        projected = split_heads(self.qkv(x), self.heads, self.head_dim, rotation)
        heads, state = self.attend_next(*projected, state, cursor)
        return self.out(heads.flatten(1)), state

    def attend_packed(
        self,
        projected: Sequence[Tensor],
        packing: Packing,
        max_length: int | None,
        state: LayerState | None,
        cursor: Cursor,
    ) -> tuple[Tensor, LayerState]:
        """As `attend_and_keep` for packed rows, (1, H, T, D); here on rows that are padded."""
        padded = (packing.unpack(part.transpose(1, 2)).transpose(1, 2) for part in projected)
        heads, state = self.attend_and_keep(*padded, packing.lengths, max_length, state, cursor)
        return packing.pack(heads.transpose(1, 2)).transpose(1, 2), state

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
