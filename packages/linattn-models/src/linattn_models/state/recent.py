"""The last tokens of each row, which decide how the text of later ones is written."""

from __future__ import annotations

import torch
from torch import Tensor

# How many tokens are kept: one more than are decoded, to see whether there were others before.
RECENT = 9
# In their place: before the first token of a sequence, and where a token is not known.
NOTHING, UNKNOWN = -1, -2


def remember(
    before: Tensor | None, tokens: Tensor, lengths: Tensor | None = None, filler: int = UNKNOWN
) -> Tensor:
    """(B, 9) int64, the last tokens of each row; tokens of three values are not known.

    Args:
        before: (B, 9), those before; None for `filler` alone.
        tokens: (B, N) or (B, N, 3).
        lengths: (B,) int, how many of them count; None for all N.
        filler: `NOTHING` at the start of sequences.
    """
    if tokens.ndim > 2:
        return tokens.new_full((len(tokens), RECENT), UNKNOWN)
    if before is None:
        before = tokens.new_full((len(tokens), RECENT), filler)
    if lengths is None:
        return torch.cat([before, tokens[:, -RECENT:]], 1)[:, -RECENT:]
    columns = lengths.to(tokens.device).unsqueeze(1) + torch.arange(RECENT, device=tokens.device)
    return torch.cat([before, tokens], 1).gather(1, columns)
