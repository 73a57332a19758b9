"""Moves padding from anywhere in a batch of tokens to the end of each row, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linattn_core.errors import expected


@dataclass(frozen=True)
class Padding:
    """Where the tokens of each row are.

    Attributes:
        lengths: (B,) int64, each row's tokens; None where there is no padding.
        order: (B, N) int64, the columns of each row with its tokens first.
        counts: (B, N) int64, the tokens of each row up to each column.
    """

    lengths: Tensor | None = None
    order: Tensor | None = None
    counts: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor | None, ids: Tensor) -> Padding:
        """The padding of a mask (B, N), which is 0 at padding."""
        if mask is None:
            return cls()
        if mask.shape != ids.shape:
            wanted = f"shape {tuple(ids.shape)} as input_ids"
            raise ValueError(expected("attention_mask", wanted, tuple(mask.shape)))
        return cls.of_mask(mask.to(ids.device).bool())

    @classmethod
    def of_mask(cls, mask: Tensor) -> Padding:
        """The padding of a mask (B, N) bool, which is False there."""
        if not torch.compiler.is_compiling() and mask.all():
            return cls()
        order = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        return cls(mask.sum(1), order, mask.cumsum(1))

    def to_the_end(self, x: Tensor, dim: int = 1) -> Tensor:
        """Tokens (B, N), or vectors with N at `dim`, with the padding of each row at its end."""
        return x if self.order is None else _select(x, self.order, dim)

    def back(self, x: Tensor) -> Tensor:
        """Vectors (B, H, N, M) at their original positions."""
        return x if self.order is None else _select(x, self.order.argsort(1), 2)

    def after_tokens(self, hidden: Tensor, has_start: bool) -> Tensor:
        """The vectors (B, N, E) after the tokens up to each column, which may be padding.

        Args:
            hidden: (B, N, E), after each token with padding at the end; before them, with
                `has_start`, the vector after the start. Without, it is 0.
        """
        if self.counts is None:
            return hidden[:, int(has_start) :]
        places = self.counts - int(not has_start)
        nothing = (places < 0).unsqueeze(2)
        return _select(hidden, places.clamp(min=0), 1).masked_fill(nothing, 0.0)


def _select(x: Tensor, places: Tensor, dim: int) -> Tensor:
    """The places (B, N) of each row of x, which has N at `dim`."""
    places = places.view(-1, *[1] * (dim - 1), places.shape[1], *[1] * (x.ndim - dim - 1))
    return x.gather(dim, places.expand(*x.shape[:dim], -1, *x.shape[dim + 1 :]))


def check_ready(ready: Tensor | None) -> None:
    """Refuses rows (B,) or (B, 1) bool that are False: the next token would follow padding."""
    if ready is not None and not ready.all():
        wanted = "padding on the left of prompts"
        row = int(ready.flatten().logical_not().nonzero()[0])
        got = f"a mask that ends in padding in row {row}"
        advice = "set tokenizer.padding_side = 'left'"
        raise ValueError(expected("attention_mask of generate", wanted, got, advice))


def check_left_padded(mask: Tensor | None, allows_empty: bool) -> None:
    """Refuses prompts that end in padding.

    Args:
        mask: 0 at padding; one of another shape than (B, N) is refused in the forward.
        allows_empty: whether a row may be padding alone: a piece of a longer prompt.
    """
    if mask is None or mask.ndim != 2 or mask[:, -1].all():
        return
    empty = ~mask.bool().any(1)
    if not allows_empty and empty.any():
        advice = "give it a token, or read prompts in one piece (no prefill_chunk_size)"
        got = f"padding alone in row {int(empty.nonzero()[0])}"
        wanted = "a token of every prompt"
        raise ValueError(expected("attention_mask of generate", wanted, got, advice))
    check_ready(mask[:, -1].bool() | empty)
