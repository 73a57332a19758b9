"""How time and memory grow with the length: fitted exponents."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Sequence

from benchmarks.measure.results import CaseResult, MethodResult
from benchmarks.report.tables import REACHED, by_series, table

FIT_FROM, FEWEST_POINTS = 4_096, 2
LINEAR = "linear"
SAMPLE = "sample"  # the unit of the series that are looked at

Read = Callable[[MethodResult], "float | None"]
seconds: Read = operator.attrgetter("seconds")
held: Read = operator.attrgetter("peak_per_unit")

# What is promised of the exponent of the time of methods whose name begins so.
PROMISED = {LINEAR: (0.9, 1.1), "lsh": (-math.inf, 1.2), "softmax": (1.9, 2.1)}


@dataclasses.dataclass(frozen=True)
class Fit:
    """A power of the length that was fitted, and where it was."""

    exponent: float
    lengths: tuple[int, ...]


def sections(results: Sequence[CaseResult], *, quick: bool = False) -> list[str]:
    """Returns the tables of every series that is measured per sample.

    Args:
        quick: the sizes are not the promised ones, so nothing is judged.
    """
    parts: list[str] = []
    for name, members in by_series(results).items():
        if members[0].case.unit == SAMPLE:
            parts += [f"### Growth with the length: {name}", exponents(members, quick=quick)]
    return parts


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the least-squares line through log y over log x."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*points, strict=True))
    return statistics.linear_regression(xs, ys).slope


def fit(members: Sequence[CaseResult], name: str, read: Read) -> Fit | None:
    """Returns the exponent of a method from FIT_FROM on, where it has enough points."""
    points = [point for point in _points(members, name, read) if point[0] >= FIT_FROM]
    if len(points) < FEWEST_POINTS:
        return None
    return Fit(exponent(points), tuple(length for length, _ in points))


def exponents(members: Sequence[CaseResult], *, quick: bool) -> str:
    """Returns the table of the fitted exponents, the promised ones beside them."""
    header = [
        "method", "lengths", "exponent of the time", "to reach", "reached",
        "exponent of the memory",
    ]  # fmt: skip
    names = [method.name for method in members[0].methods]
    return table(header, [_exponent_row(members, name, quick) for name in names])


def _exponent_row(members: Sequence[CaseResult], name: str, quick: bool) -> list[str]:
    time, memory = fit(members, name, seconds), fit(members, name, held)
    low, high = next((PROMISED[start] for start in PROMISED if name.startswith(start)), (None, 0))
    judged = None if quick or time is None or low is None else low <= time.exponent <= high
    promised = (
        "-" if low is None else f"<= {high:g}" if low == -math.inf else f"{low:g} to {high:g}"
    )
    lengths = "-" if time is None else f"{time.lengths[0]:,} to {time.lengths[-1]:,}"
    return [name, lengths, _shown(time), promised, REACHED[judged], _shown(memory)]


def _shown(found: Fit | None) -> str:
    return "-" if found is None else f"{found.exponent:.2f}"


def _points(members: Sequence[CaseResult], name: str, read: Read) -> list[tuple[int, float]]:
    found = [(member.case.at, read(member.method(name))) for member in members]
    return [
        (at, value) for at, value in found if at is not None and value is not None and value > 0
    ]
