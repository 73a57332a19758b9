"""What all attentions share: the projections in and out, and three ways to run."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from linattn_core.decoding import Affine, CannotCompile
from linattn_models.state import Cursor, LayerState


class Mixer(nn.Module):
    """Multi-head attention from (B, N, E) to (B, N, E); a subclass says how heads attend.

    A subclass implements `attend`, and to step also `initial_state`, `attend_and_keep` and
    `attend_next`. They take the projections of x, (B, H, N, D) each: query, key and value.

    Args:
        attention: the configuration; its type is the subclass's own.
        num_heads, head_dim: H and D; E = H D.
        is_causal: whether position i sees only positions up to i.

    Attributes:
        spread: standard deviation of queries and keys at the start, for normalized inputs.
        projections: of x: queries, keys and values, or fewer where two of them are one.
    """

    spread = 1.0
    projections = 3

    def __init__(self, attention: Any, num_heads: int, head_dim: int, is_causal: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.is_causal = is_causal
        self._cannot_step: str = attention.cannot_step
        embed_dim = num_heads * head_dim
        self.qkv = nn.Linear(embed_dim, self.projections * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, key_lengths: Tensor | None = None) -> Tensor:
        """(B, N, E) -> (B, N, E), all positions at once."""
        return self._join(self.attend(*self._project(x), key_lengths))

    def prefill(
        self, x: Tensor, lengths: Tensor | None, max_length: int | None
    ) -> tuple[Tensor, LayerState]:
        """As `forward`, and the state after each row's own length."""
        heads, state = self.attend_and_keep(*self._project(x), lengths, max_length)
        return self._join(heads), state

    def step(self, x: Tensor, state: LayerState, cursor: Cursor) -> tuple[Tensor, LayerState]:
        """One position more: (B, E) -> (B, E), and the state that includes it."""
        by_head = self.qkv(x).view(x.shape[0], self.projections, self.num_heads, self.head_dim)
        heads, state = self.attend_next(*by_head.unbind(1), state, cursor)
        return self.out(heads.flatten(1)), state

    def attend(self, *args: Any, **kwargs: Any) -> Tensor:
        """(query, key, value, lengths) -> (B, H, N, D)."""
        raise NotImplementedError

    def initial_state(self, *args: Any, **kwargs: Any) -> LayerState:
        """(batch, max_length, device, dtype) -> the state before the first position."""
        raise ValueError(self._cannot_step)

    def attend_and_keep(self, *args: Any, **kwargs: Any) -> tuple[Tensor, LayerState]:
        """(query, key, value, lengths, max_length) -> as `attend`, and each row's state."""
        raise ValueError(self._cannot_step)

    def attend_next(self, *args: Any, **kwargs: Any) -> tuple[Tensor, LayerState]:
        """(query, key, value, (B, H, D) each, state, cursor) -> (B, H, D), and the next state."""
        raise ValueError(self._cannot_step)

    def describe(self) -> tuple[Affine, Affine]:
        """The projections in and out, for a backend that compiles whole steps.

        Raises:
            CannotCompile: an attention, or a layer in it, without a compiled step.
        """
        raise CannotCompile(f"{type(self).__name__} has no compiled step.")

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The projections of x, (B, H, N, D) each, as views.

        Taken apart before heads and positions change places, so that one copy puts the three
        gradients together again.
        """
        shape = (self.projections, self.num_heads, self.head_dim)
        by_head: Tensor = self.qkv(x).unflatten(-1, shape)  # (B, N, 3, H, D)
        return tuple(part.transpose(1, 2) for part in by_head.unbind(2))

    def _join(self, heads: Tensor) -> Tensor:
        joined: Tensor = self.out(heads.transpose(1, 2).flatten(2))  # (B, N, E)
        return joined
