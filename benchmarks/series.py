"""Cases that differ in a length: a table by length, and where linear attention wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from benchmarks.results import CaseResult, MethodResult
from linattn_lab.tables import figure, literal, markdown_table, memory, seconds

LINEAR = "linear"
CROSSOVER = (
    "The length from which on linear attention, by the fastest live backend, is faster than each "
    "rival, forward and backward, causal (interpolated between the lengths measured)."
)

Members = Sequence[CaseResult]
Points = Sequence[tuple[float, float]]  # lengths, and a value at each
Series = dict[str, list[CaseResult]]


def describe_series(results: Mapping[str, CaseResult]) -> list[str]:
    """Returns the headings and tables of all series."""
    parts: list[str] = []
    for name, members in by_series(results).items():
        parts += [f"## By length: {literal(name)}", _times(members), *_peaks(members)]
    return parts


def describe_crossover(results: Mapping[str, CaseResult]) -> list[str]:
    """Returns a table with a row for each series, in place of a table for each."""
    series = by_series(results)
    return ["## Crossover", CROSSOVER, _crossover(series)] if series else []


def by_series(results: Mapping[str, CaseResult]) -> Series:
    """Returns the cases by series."""
    members: Series = {}
    for result in results.values():
        if result.series is not None and result.at is not None:
            members.setdefault(result.series, []).append(result)
    return members


def points(
    members: Members, name: str, read: Callable[[MethodResult], float | None]
) -> list[tuple[int, float]]:
    """Returns the values of a method by length."""
    values = [(member.at, read(member.method(name))) for member in members]
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
    length = interpolate(ratios[losses[-1]], ratios[losses[-1] + 1])
    return f"~{int(float(f'{length:.1e}')):,}"  # the machine's noise leaves no more digits


def interpolate(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Returns the length at which a power law through both points passes 1."""
    (left, low), (right, high) = before, after
    share = -math.log(low) / (math.log(high) - math.log(low))
    return float(left * (right / left) ** share)


def _names(members: Members) -> list[str]:
    return [method.name for method in members[0].methods]


def _times(members: Members) -> str:
    """The time of each method, and how many times as fast the first is as the last."""
    names = _names(members)
    known = [x for x in names if points(members, x, lambda method: method.seconds)] or names
    ours, rival = known[0], known[-1]
    rows = []
    for member in members:
        ratio = member.ratio(rival, ours)
        gain = figure(ratio.median) if ratio else "-"
        rows.append([f"{member.at:,}", *(_time(member.method(x)) for x in known), gain])
    table = markdown_table(["N", *known, f"{rival} / {ours}"], rows)
    absent = [f"{x} ({members[0].method(x).status})" for x in names if x not in known]
    return f"{table}\nWithout a number: {literal(', '.join(absent))}." if absent else table


def _peaks(members: Members) -> list[str]:
    """The peak memory of each method, where it is known."""
    known = [x for x in _names(members) if points(members, x, lambda of: of.peak_per_unit)]
    rows = [
        [f"{member.at:,}", *(memory(member.method(x).peak_per_unit) for x in known)]
        for member in members
    ]
    return ["Peak memory:", markdown_table(["N", *known], rows)] if known else []


def _time(method: MethodResult) -> str:
    return method.status if method.value is None else seconds(method.seconds)


def _crossover(series: Series) -> str:
    rivals = [n for n in _names(next(iter(series.values()))) if not n.startswith(LINEAR)]
    rows = [
        [name, *(crossing(gains_over(members, rival)) for rival in rivals)]
        for name, members in series.items()
    ]
    return markdown_table(["heads", *rivals], rows)


def gains_over(members: Members, rival: str) -> list[tuple[float, float]]:
    """Returns the rival's time over that of the fastest linear attention, by length."""
    ratios: list[tuple[float, float]] = []
    for member in members:
        linear = [x.seconds for x in member.methods if x.name.startswith(LINEAR) and x.seconds]
        time = member.method(rival).seconds
        if linear and time and member.at is not None:
            ratios.append((member.at, time / min(linear)))
    return ratios
