"""Cases that differ in a length: a table by length, and where linear attention wins."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from benchmarks.measure.results import CaseResult, MethodResult
from benchmarks.report.tables import median, memory, table

LINEAR = "linear"
CROSSOVER = (
    "The length from which on linear attention, by the fastest live backend, is faster than each "
    "rival, forward and backward, causal (interpolated between the lengths measured)."
)

Members = Sequence[CaseResult]
Points = Sequence[tuple[int, float]]  # lengths, and a value at each
Read = Callable[[MethodResult], float | None]
seconds: Read = operator.attrgetter("seconds")
held: Read = operator.attrgetter("peak_per_unit")


def sections(results: Sequence[CaseResult]) -> list[str]:
    """Returns the headings and tables of all series."""
    parts: list[str] = []
    for name, members in by_series(results).items():
        parts += [f"## By length: {name}", _by_length(members)]
    summarized = by_series(results, summarized=True)
    return [*parts, "## Crossover", CROSSOVER, _crossover(summarized)] if summarized else parts


def by_series(results: Sequence[CaseResult], *, summarized: bool = False) -> dict[str, Members]:
    """Returns the cases by series: of those that have a table each, or that one summarizes."""
    members: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.case.series is not None and result.case.summarized == summarized:
            members.setdefault(result.case.series, []).append(result)
    return dict(members)


def points(members: Members, name: str, read: Read) -> Points:
    """Returns the values of a method by length."""
    values = [(member.case.at, read(member.method(name))) for member in members]
    return [(at, value) for at, value in values if at is not None and value]


def crossing(ratios: Points) -> str:
    """Returns from which length on the ratios stay above 1, in words."""
    if not ratios:
        return "-"
    losses = [number for number, (_, ratio) in enumerate(ratios) if ratio <= 1]
    if not losses:
        return f"below {ratios[0][0]:,}"
    if losses[-1] == len(ratios) - 1:
        return f"never up to {ratios[-1][0]:,}"
    length = between(ratios[losses[-1]], ratios[losses[-1] + 1])
    return f"~{int(float(f'{length:.1e}')):,}"  # the machine's noise leaves no more digits


def between(before: tuple[int, float], after: tuple[int, float]) -> float:
    """Returns the length at which a power law through both points passes 1."""
    (left, low), (right, high) = before, after
    share = -math.log(low) / (math.log(high) - math.log(low))
    return left * float(right / left) ** share


def _names(members: Members) -> list[str]:
    return [method.name for method in members[0].methods]


def _by_length(members: Members) -> str:
    """Times of each method, with the peak memory per unit where it is known, and their ratios."""
    *ours, rival = _names(members)
    rows = []
    for member in members:
        ratios = (member.method(name).over_last for name in ours)
        shown = (f"{ratio.median:.2f}" if ratio else "-" for ratio in ratios)
        rows.append([f"{member.case.at:,}", *map(_cell, member.methods), *shown])
    return table(["N", *ours, rival, *(f"{rival} / {name}" for name in ours)], rows)


def _cell(method: MethodResult) -> str:
    space = method.peak_per_unit
    return median(method) if space is None else f"{median(method)}, {memory(space)}"


def _crossover(series: dict[str, Members]) -> str:
    rivals = [n for n in _names(next(iter(series.values()))) if not n.startswith(LINEAR)]
    rows = [
        [name, *(crossing(_over_linear(members, rival)) for rival in rivals)]
        for name, members in series.items()
    ]
    return table(["heads", *rivals], rows)


def _over_linear(members: Members, rival: str) -> Points:
    """The rival's time over that of the fastest linear, by length."""
    linear = [
        dict(points(members, name, seconds)) for name in _names(members) if name.startswith(LINEAR)
    ]
    fastest = {at: min(t[at] for t in linear if at in t) for times in linear for at in times}
    times = points(members, rival, seconds)
    return sorted((at, value / fastest[at]) for at, value in times if at in fastest)
