"""Figures 3, 4 and 6 to 9: samples and completions."""

from __future__ import annotations

from replication.claims.claim import ABOVE_ZERO, Claim, Rule
from replication.claims.learning import ATTENTIONS

BETTER = 0.8  # of the bits per dimension of independent pixels


def _grid(figure: int, method: str, shape: str, what: str) -> Claim:
    return Claim(
        f"figure{figure}/{method}/{what}",
        f"figure {figure}",
        f"{method}: {what} of {shape}.",
        "mnist" if shape == "mnist" and method in ("linear", "softmax") else f"bits-{shape}",
        Rule(f"{method}/{what}-over-independent", ABOVE_ZERO, BETTER),
        unit="bits/dim over those of independent pixels",
        paper="a picture",
        same_scale=("paper",),
    )


# Figure, what it shows, of which images, by which attentions.
FIGURES = (
    (3, "mnist", ("samples", "completions"), ("linear",)),
    (4, "cifar10", ("samples", "completions"), ("linear",)),
    (6, "mnist", ("samples",), ATTENTIONS),
    (7, "mnist", ("completions",), ATTENTIONS),
    (8, "cifar10", ("samples",), ATTENTIONS),
    (9, "cifar10", ("completions",), ATTENTIONS),
)
CLAIMS = tuple(
    _grid(figure, method, shape, what)
    for figure, shape, whats, methods in FIGURES
    for method in methods
    for what in whats
)
