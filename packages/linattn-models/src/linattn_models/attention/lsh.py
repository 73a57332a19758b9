"""LSH attention, Reformer's: a rival that is O(N log N) whole, and that cannot step."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from linattn_models.attention.base import Mixer
from linattn_models.config import TransformerConfig
from linattn_models.lsh import draw_rotations, lsh_attention
from linattn_models.state import Cursor, LayerState


class LshMixer(Mixer):
    """Heads attend by `lsh_attention`, so that one projection is queries and keys.

    In training mode each call hashes by rotations of its own, from torch's random numbers; in
    evaluation mode by those that the model was built with, which are saved with it.

    A sequence shorter than a chunk is one chunk, in which all positions see one another.
    """

    can_step = False
    projections = 2
    rotations: Tensor  # (rounds, H, D, buckets / 2)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.rounds = config.lsh_rounds
        self.buckets = config.lsh_buckets
        self.chunk = config.lsh_chunk
        rotations = draw_rotations(self.rounds, self.num_heads, self.head_dim, self.buckets)
        self.register_buffer("rotations", rotations)

    def forward(self, x: Tensor, key_lengths: Tensor | None = None) -> Tensor:
        """(B, N, E) -> (B, N, E), all positions at once."""
        query, value = self._project(x)
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        heads = lsh_attention(
            query,
            value,
            is_causal=self.is_causal,
            chunk=min(self.chunk, x.shape[1]),
            key_lengths=key_lengths,
            rotations=rotations,
        )
        return self._join(heads)

    def prefill(
        self, x: Tensor, lengths: Tensor | None, max_length: int | None
    ) -> tuple[Tensor, LayerState]:
        """Refuses."""
        _refuse()

    def step(self, x: Tensor, state: LayerState, cursor: Cursor) -> tuple[Tensor, LayerState]:
        """Refuses."""
        _refuse()

    def initial_state(
        self, batch: int, max_length: int | None, device: torch.device, dtype: torch.dtype
    ) -> LayerState:
        """Refuses."""
        _refuse()


def _refuse() -> NoReturn:
    raise ValueError(
        "LSH attention cannot step or prefill: a new position sorts into the midst of those before "
        "it and shifts the chunks of all, so that no state stays valid; call "
        "generate(method='rerun'), or use linear or softmax attention."
    )
