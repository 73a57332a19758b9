"""Figures 3, 4 and 6 to 9: samples and completions."""

from __future__ import annotations

from replication.claims.claim import Bound, Claim
from replication.claims.learning import ATTENTIONS

BETTER = 0.8  # of the bits per dimension of independent pixels


def _grid(figure: int, method: str, shape: str, what: str) -> Claim:
    return Claim(
        f"figure{figure}/{method}/{what}",
        f"figure {figure}",
        f"{method}: {what} of {shape}.",
        "mnist" if shape == "mnist" and method in ("linear", "softmax") else f"bits-{shape}",
        Bound(f"{method}/{what}-over-independent", high=BETTER),
        unit="bits/dim over those of independent pixels",
        paper="a picture",
        same_scale=("paper",),
    )


CLAIMS = (
    _grid(3, "linear", "mnist", "samples"),
    _grid(3, "linear", "mnist", "completions"),
    _grid(4, "linear", "cifar10", "samples"),
    _grid(4, "linear", "cifar10", "completions"),
    *(_grid(6, method, "mnist", "samples") for method in ATTENTIONS),
    *(_grid(7, method, "mnist", "completions") for method in ATTENTIONS),
    *(_grid(8, method, "cifar10", "samples") for method in ATTENTIONS),
    *(_grid(9, method, "cifar10", "completions") for method in ATTENTIONS),
)
