"""Bits per dimension of the validation images while models train, in two panels side by side."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from linattn_models.training import RunFolder

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        over: what runs along its lower edge.
        curves: (there, bits per dimension) of every look at the validation images, by name.
    """

    over: str
    curves: Mapping[str, Curve]


def validation_curve(run: RunFolder, over: str, scale: float = 1.0) -> Curve:
    """Every look at the validation images, over `scale` times "step" or "seconds" of the run."""
    looks = [line for line in run.metrics() if line["split"] == "eval"]
    return [(scale * look[over], look["bits_per_dim"]) for look in looks]


def draw(left: Panel, right: Panel) -> bytes:
    """A PNG of two panels that share their scale of bits."""
    drawing = Figure(figsize=(9, 3.4), layout="constrained")
    axes = drawing.subplots(1, 2, sharey=True)
    for panel, place in zip((left, right), axes, strict=True):
        for name, curve in panel.curves.items():
            place.plot(*zip(*curve, strict=True), label=name, marker="o", markersize=3)
        place.set(xlabel=panel.over)
        place.grid(alpha=0.3)
    axes[0].set(ylabel="bits/dim, validation images")
    axes[0].legend()
    png = io.BytesIO()
    drawing.savefig(png, format="png", dpi=120)
    return png.getvalue()
