"""How fast a head forgets: the logarithm of a factor for each head, or for each position too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_models.basics.validation import one_of

DECAYS = ("fixed", "learned", "gated")


class Decay(nn.Module):
    """The log_decay of linear attention: one number per head, the same at every position.

        exp(log_decay[h]) = 1 - 2^(-5 - h)

    as in RetNet (arXiv 2307.08621). "learned" starts with these factors and keeps them between 0
    and 1. With a range they start evenly spread over it, and training keeps them in it.

    "gated" reads the input x of the layer at each position, as xLSTM's mLSTM (arXiv 2405.04517),
    Mamba-2 and the gated RetNet do, and starts near the same factors:

        log_decay[h] = log sigmoid(logits[h] + weight[h] x)

    Args:
        kind: "fixed", "learned" or "gated".
        heads: H_kv.
        embed_dim: E, the width of x.
        bounds: the least and the greatest factor; 0 and 1 by default. Not for "gated".
    """

    logits: Tensor  # (H_kv,): factor = sigmoid(logit), or its place between the bounds
    weight: nn.Parameter | None  # (H_kv, E), of "gated"

    def __init__(
        self, kind: str, heads: int, embed_dim: int, bounds: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        one_of("decay", kind, DECAYS)
        self.bounds = bounds
        self.weight = None
        if kind == "gated":
            bound = embed_dim**-0.5  # as torch.nn.Linear
            self.weight = nn.Parameter(torch.empty(heads, embed_dim).uniform_(-bound, bound))
        logits = (2.0 ** (5.0 + torch.arange(heads, dtype=torch.float64)) - 1.0).log()
        if bounds is not None:
            logits = ((torch.arange(heads, dtype=torch.float64) + 0.5) / heads).logit()
        # At least float32: half precision has few numbers near 1, where the factors are.
        logits = logits.to(torch.promote_types(torch.get_default_dtype(), torch.float32))
        if kind != "fixed":
            self.logits = nn.Parameter(logits)
        else:
            self.register_buffer("logits", logits)

    @property
    def is_gated(self) -> bool:
        """Whether it depends on the input."""
        return self.weight is not None

    def forward(self, x: Tensor | None = None) -> Tensor:
        """log_decay, below 0, at least float32: (H_kv,); of "gated" for x (..., E): (..., H_kv)."""
        wide = self.logits if self.logits.dtype == torch.float64 else self.logits.float()
        if self.weight is not None:
            assert x is not None, "a gated decay reads the input of its layer"
            return F.logsigmoid(wide + F.linear(x, self.weight))
        if self.bounds is None:
            return F.logsigmoid(wide)
        low, high = self.bounds
        return (low + (high - low) * wide.sigmoid()).log()

    def factor_logits(self) -> Tensor:
        """(H_kv,) numbers whose sigmoid is the factor; with bounds a copy, in the same dtype."""
        if self.bounds is None:
            return self.logits
        low, high = self.bounds
        factor = low + (high - low) * self.logits.detach().double().sigmoid()
        return factor.logit().to(self.logits.dtype)
