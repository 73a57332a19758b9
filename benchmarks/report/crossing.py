"""From which length on linear attention is faster than each rival: the crossover table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.measure.results import CaseResult
from benchmarks.report.growth import LINEAR
from benchmarks.report.tables import by_series, table

UNKNOWN = "-"

Ratios = Sequence[tuple[int, float]]  # lengths, and the rival's time over that of linear


def sections(results: Sequence[CaseResult]) -> list[str]:
    """Returns the crossover table of the series that are summarized, a row for each."""
    found = by_series(results, summarized=True)
    if not found:
        return []
    first = next(iter(found.values()))[0]
    rivals = [method.name for method in first.methods if not method.name.startswith(LINEAR)]
    rows = [
        [name, *(crossing(ratios(members, rival)) for rival in rivals)]
        for name, members in found.items()
    ]
    words = (
        "The length from which on linear attention, by the fastest live backend, is faster than "
        "each rival, forward and backward, causal (interpolated between the lengths measured)."
    )
    return ["## Crossover", words, table(["heads", *rivals], rows)]


def ratios(members: Sequence[CaseResult], rival: str) -> Ratios:
    """Returns the rival's time over that of the fastest linear, by length."""
    found = []
    for member in members:
        best, value = fastest_linear(member), member.method(rival).seconds
        if member.case.at is not None and best is not None and value is not None:
            found.append((member.case.at, value / best))
    return sorted(found)


def crossing(points: Ratios) -> str:
    """Returns from which length on the ratios stay above 1, in words."""
    if not points:
        return UNKNOWN
    losses = [number for number, (_, ratio) in enumerate(points) if ratio <= 1]
    if not losses:
        return f"below {points[0][0]:,}"
    if losses[-1] == len(points) - 1:
        return f"never up to {points[-1][0]:,}"
    return f"~{_rounded(between(points[losses[-1]], points[losses[-1] + 1])):,}"


def between(before: tuple[int, float], after: tuple[int, float]) -> float:
    """Returns the length at which a power law through both points passes 1."""
    (left, low), (right, high) = before, after
    share = -math.log(low) / (math.log(high) - math.log(low))
    return left * float(right / left) ** share


def _rounded(length: float) -> int:
    """To two digits: the machine's noise leaves no more."""
    return int(float(f"{length:.1e}"))


def fastest_linear(result: CaseResult) -> float | None:
    """Returns the least time of linear attention by any backend, where it was measured."""
    times = [method.seconds for method in result.methods if method.name.startswith(LINEAR)]
    return min((value for value in times if value is not None), default=None)
