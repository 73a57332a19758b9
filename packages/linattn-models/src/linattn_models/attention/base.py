"""What all attentions share: the projections in and out, and three ways to run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from linattn_core.decoding import Affine, CannotCompile
from linattn_models.state import Cursor, LayerState


class Mixer(nn.Module):
    """Multi-head attention from (B, N, E) to (B, N, E); a subclass says how heads attend.

    A subclass implements `attend` (a whole sequence), and for decoding `initial_state`,
    `attend_and_keep` (a whole prompt, returning a state) and `attend_next` (one position more).

    Args:
        attention: the configuration; its type is the subclass's own.
        num_heads, head_dim: H and D; E = H D.
        is_causal: whether position i sees only positions up to i.

    Attributes:
        spread: standard deviation of queries and keys at the start, for normalized inputs.
        projections: outputs of the first layer: queries, keys and values, or fewer where two of
            them are one.
    """

    spread = 1.0
    projections = 3

    def __init__(self, attention: Any, num_heads: int, head_dim: int, is_causal: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.is_causal = is_causal
        embed_dim = num_heads * head_dim
        self.qkv = nn.Linear(embed_dim, self.projections * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, key_lengths: Tensor | None = None) -> Tensor:
        """(B, N, E) -> (B, N, E), all positions at once."""
        return self._join(self.attend(*self._split(x), key_lengths))

    def prefill(
        self, x: Tensor, lengths: Tensor | None, max_length: int | None
    ) -> tuple[Tensor, LayerState]:
        """As `forward`, and the state after each row's own length."""
        heads, state = self.attend_and_keep(*self._split(x), lengths, max_length)
        return self._join(heads), state

    def step(self, x: Tensor, state: LayerState, cursor: Cursor) -> tuple[Tensor, LayerState]:
        """One position more: (B, E) -> (B, E), and the state that includes it."""
        projected: Tensor = self.qkv(x)  # (B, 3 E)
        by_head = projected.view(x.shape[0], 3, self.num_heads, self.head_dim)
        query, key, value = by_head.unbind(1)  # (B, H, D) each, views
        heads, state = self.attend_next(query, key, value, state, cursor)
        joined: Tensor = self.out(heads.flatten(1))
        return joined, state

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """The state before the first position."""
        raise NotImplementedError

    def attend(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, H, N, D) three times -> (B, H, N, D)."""
        raise NotImplementedError

    def attend_and_keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        max_length: int | None,
    ) -> tuple[Tensor, LayerState]:
        """As `attend`, and the state after each row's own length."""
        raise NotImplementedError

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: LayerState, cursor: Cursor
    ) -> tuple[Tensor, LayerState]:
        """(B, H, D) three times -> (B, H, D), and the next state."""
        raise NotImplementedError

    def describe(self) -> tuple[Affine, Affine]:
        """The projections in and out, for a backend that compiles whole steps.

        Raises:
            CannotCompile: an attention, or a layer in it, without a compiled step.
        """
        raise CannotCompile(f"{type(self).__name__} has no compiled step.")

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self._project(x)
        return query, key, value

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The projections of x, (B, H, N, D) each, as views; values are the last."""
        shape = (self.projections, self.num_heads, self.head_dim)
        by_head: Tensor = self.qkv(x).unflatten(-1, shape)
        return by_head.permute(2, 0, 3, 1, 4).unbind(0)

    def _join(self, heads: Tensor) -> Tensor:
        joined: Tensor = self.out(heads.transpose(1, 2).flatten(2))  # (B, N, E)
        return joined
