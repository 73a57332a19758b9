"""The layer with LSH attention: O(N log N) for a whole sequence; it cannot step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.attention.base import Mixer
from linattn_models.attention.config import Lsh
from linattn_models.attention.lsh.functional import draw_rotations, lsh_attention


class LshMixer(Mixer):
    """Heads attend by `lsh_attention`; queries and keys share one projection.

    In training mode each call draws new rotations from torch's default generator. In evaluation
    mode calls use the rotations that were drawn with the model, which are saved with it.

    A sequence shorter than `chunk` is one chunk, in which all positions see one another (before
    causality).
    """

    projections = 2
    rotations: Tensor  # (rounds, H, D, buckets / 2)

    def __init__(
        self, attention: Lsh, num_heads: int, head_dim: int, is_causal: bool, **settings: Any
    ) -> None:
        super().__init__(num_heads, head_dim, is_causal, **settings)
        self.chunk = attention.chunk
        rotations = draw_rotations(attention.rounds, num_heads, head_dim, attention.buckets)
        self.register_buffer("rotations", rotations)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(B, H, N, D) -> (B, H, N, D) in O(N log N); the keys are the queries."""
        if mask is not None:
            advice = "pass key_lengths to a Transformer, or use linear or softmax attention"
            raise ValueError(expected("attn_mask", "None for LSH attention", "a mask", advice))
        if query.shape[2] == 0:  # nothing to sort
            return torch.zeros_like(value)
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        return lsh_attention(
            query,
            value,
            is_causal=self.is_causal,
            chunk=min(self.chunk, query.shape[2]),
            key_lengths=lengths,
            rotations=rotations,
        )
