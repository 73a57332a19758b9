"""How time and memory grow with the length: fitted exponents, and who is best where."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from benchmarks.measure.results import CaseResult, MethodResult, Quantity
from benchmarks.report.tables import REACHED, by_series, quantity, table

FIT_FROM, FEWEST_POINTS = 4_096, 2
BEST_FROM = 1_024
LINEAR, REFERENCE = "linear", "linear (torch)"
SAMPLE = "sample"  # the unit of the series that are looked at

Read = Callable[[MethodResult], "float | None"]
Best = tuple[float, str] | None  # a figure and whose it is


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What is promised of the exponent of the time of methods whose name begins so."""

    prefix: str
    at_least: float
    at_most: float

    @property
    def words(self) -> str:
        """As the document shows them."""
        if self.at_least == -math.inf:
            return f"<= {self.at_most:g}"
        return f"{self.at_least:g} to {self.at_most:g}"

    def reached(self, exponent: float) -> bool:
        """True between the bounds."""
        return self.at_least <= exponent <= self.at_most


PROMISED = (Bounds(LINEAR, 0.9, 1.1), Bounds("lsh", -math.inf, 1.2), Bounds("softmax", 1.9, 2.1))


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
            parts += [] if quick else best(members)
    return parts


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the least-squares line through log y over log x."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*points, strict=True))
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)


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
    promise = next((bounds for bounds in PROMISED if name.startswith(bounds.prefix)), None)
    judged = None if quick or time is None or promise is None else promise.reached(time.exponent)
    return [
        name,
        "-" if time is None else f"{time.lengths[0]:,} to {time.lengths[-1]:,}",
        _shown(time),
        "-" if promise is None else promise.words,
        REACHED[judged],
        _shown(memory),
    ]


def _shown(found: Fit | None) -> str:
    return "-" if found is None else f"{found.exponent:.2f}"


def best(members: Sequence[CaseResult]) -> list[str]:
    """Returns the table of who is the fastest and the smallest at each length, and its sentence.

    Without a native backend of ours in the run there is neither.
    """
    names = [method.name for method in members[0].methods]
    measured = {name for name in names if _points(members, name, seconds)}
    if not any(name.startswith(LINEAR) for name in measured - {REFERENCE}):
        return []
    long = [member for member in members if member.case.at and member.case.at >= BEST_FROM]
    if not long:
        return []
    header = ["N", "fastest", "best rival's time over linear's", "smallest"]
    header.append("best rival's memory over linear's")
    rows = [
        [f"{member.case.at:,}", *_duel(member, seconds), *_duel(member, held)] for member in long
    ]
    verdicts = (
        _verdict(long, seconds, "fastest", "seconds"),
        _verdict(long, held, "smallest", "bytes"),
    )
    return [table(header, rows), " ".join(words for words in verdicts if words)]


def _duel(member: CaseResult, read: Read) -> list[str]:
    """Who needs the least, and how much more the best rival needs than the best of ours."""
    ours, rival = _both(member, read)
    known = [found for found in (ours, rival) if found is not None]
    if not known:
        return ["-", "-"]
    name = min(known)[1]
    return [name, f"{rival[0] / ours[0]:.2f}" if ours and rival and ours[0] else "-"]


def _both(member: CaseResult, read: Read) -> tuple[Best, Best]:
    """The least of ours and of the rivals, with their names."""
    values: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
    for method in member.methods:
        value = read(method)
        if value is not None:
            values[method.name.startswith(LINEAR)].append((value, method.name))
    return min(values[True], default=None), min(values[False], default=None)


def _verdict(
    members: Sequence[CaseResult], read: Read, superlative: str, kind: Quantity
) -> str | None:
    """Returns the sentence that says whether linear is it everywhere, or where it is not."""
    known = [(member, *_both(member, read)) for member in members]
    exceptions = [
        f"at N={member.case.at:,} ({rival[1]} {quantity(rival[0], kind)}, "
        f"{ours[1]} {quantity(ours[0], kind)})"
        for member, ours, rival in known
        if ours and rival and rival < ours
    ]
    lengths = [member.case.at for member, ours, _ in known if ours and member.case.at]
    if not lengths:
        return None
    where = f"at every length measured from {lengths[0]:,} to {lengths[-1]:,}"
    if not exceptions:
        return f"Linear attention is the {superlative} {where}."
    return f"Linear attention is the {superlative} {where} but {', '.join(exceptions)}."


def seconds(method: MethodResult) -> float | None:
    """Returns the median time per unit."""
    return method.seconds


def held(method: MethodResult) -> float | None:
    """Returns the peak memory per unit."""
    return method.peak_per_unit


def _points(members: Sequence[CaseResult], name: str, read: Read) -> list[tuple[int, float]]:
    found = [(member.case.at, read(member.method(name))) for member in members]
    return [
        (at, value) for at, value in found if at is not None and value is not None and value > 0
    ]
