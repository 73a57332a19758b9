"""Bits per dimension over the images seen: what was measured of long runs, and a curve through it.

The curve is a + b n^-c with a and b of at least 0, found by least squares for each c of a grid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import linear_regression
from typing import Any

from replication.read import METRICS, SUMMARY
from replication.validation import loaded

EXPONENTS = tuple(k / 50 for k in range(1, 101))
FEWEST = 5  # points of a fit: two more than the curve has numbers
WARM_UP = 100  # updates in which bits fall by another law
SIGMAS = 2.0  # standard errors by which the curves beside the best one may be worse
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Curves (a, b, c) through points: the best one, and all that fit nearly as well."""

    best: tuple[float, float, float]
    near: tuple[tuple[float, float, float], ...]

    def at(self, n: float) -> float:
        """The best curve's value."""
        return value(self.best, n)

    def between(self, n: float) -> tuple[float, float]:
        """The least and the greatest value of the curves that fit nearly as well."""
        values = [value(curve, n) for curve in self.near]
        return min(values), max(values)


@dataclass(frozen=True)
class Run:
    """A training: bits per dimension of validation images, or of its own batches, by images seen.

    Args:
        fitted: those of the points that the curve is through; of a trapezoid, at its constant rate.
        validated: whether `points` are of validation images; of training batches, where there are
            too few of those.
        images, seconds: of the whole training.
        summary: summary.json.
    """

    name: str
    points: Points
    fitted: Points
    validated: bool
    images: int
    seconds: float
    summary: dict[str, Any]

    @property
    def of(self) -> str:
        """What the points are of."""
        return "validation images" if self.validated else "training batches"

    @cached_property
    def curve(self) -> Curve | None:
        """Through the points; None for too few."""
        return fit(self.fitted) if len(self.fitted) >= FEWEST else None


def value(curve: tuple[float, float, float], n: float) -> float:
    """a + b n^-c."""
    a, b, c = curve
    return a + b * math.exp(-c * math.log(n))


def fit(points: Points) -> Curve:
    """The curves through five points or more."""
    found = sorted((_through(points, c) for c in EXPONENTS), key=lambda each: each[0])
    least, best = found[0]
    allowed = least * (1 + SIGMAS**2 / (len(points) - 3))
    return Curve(best, tuple(curve for error, curve in found if error <= allowed))


def _through(points: Points, c: float) -> tuple[float, tuple[float, float, float]]:
    """The sum of squares that the best curve of this exponent leaves, and the curve."""
    xs, ys = [n**-c for n, _ in points], [y for _, y in points]
    b, a = linear_regression(xs, ys)
    if a < 0:
        a, b = 0.0, sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs)
    if b < 0:
        a, b = sum(ys) / len(ys), 0.0
    curve = (a, b, c)
    return sum((value(curve, n) - y) ** 2 for n, y in points), curve


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return list(map(json.loads, (run / METRICS).read_text(encoding="utf-8").splitlines()))


def runs(folders: Mapping[str, Path]) -> Iterator[Run]:
    """The trainings whose records lie in these folders."""
    for name, folder in folders.items():
        with loaded(folder / SUMMARY) as summary, loaded(folder / "config.json") as config:
            yield _run(name, folder, summary, config["training"])


def _run(name: str, folder: Path, summary: dict[str, Any], training: dict[str, Any]) -> Run:
    batch = training["batch_size"]
    rows = [row for row in rows_of(folder) if row["step"] >= WARM_UP]
    seen = [(r["step"] * batch, r["bits_per_dim"]) for r in rows if "bits_per_dim" in r]
    trained = [(r["step"] * batch, r["loss"] / math.log(2)) for r in rows if "loss" in r]
    validated = len(seen) >= FEWEST
    points, level = seen if validated else trained, math.inf
    if training.get("schedule") == "trapezoid":  # constant, and then a fall by another law
        rates = [(row["learning_rate"], row["step"]) for row in rows if "learning_rate" in row]
        level = batch * max(rates)[1]
    return Run(
        name, points, [(n, y) for n, y in points if n <= level], validated,
        summary["steps"] * batch, summary["train_seconds"], summary,
    )  # fmt: skip
