"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measure.results import (
    CaseResult,
    MethodResult,
    Quantity,
    Spread,
    Target,
    TargetResult,
)

MIB = 2**20
SECOND_PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
REACHED = {True: "yes", False: "**no**", None: "-"}


def targets(results: Sequence[CaseResult], runs: Mapping[str, str]) -> str:
    """Returns one row for each promised figure; `runs` names the run of each case."""
    rows = [
        [result.case.name, outcome.target.shows, *_outcome(result, outcome), runs[result.case.name]]
        for result in results
        for outcome in result.targets
    ]
    if not rows:
        return "No case of this theme promises a figure."
    header = [
        "case", "figure", "measured", "quartiles", "to reach", "reached", "run"
    ]  # fmt: skip
    return table(header, rows)


def measurements(results: Sequence[CaseResult], runs: Mapping[str, str]) -> str:
    """Returns one row for each method of each case that is in no series, which has its tables."""
    results = [result for result in results if result.case.series is None]
    if not results:
        return "The tables above show all."
    peaks = ["peak memory"] if _has_peaks(results) else []
    header = [
        "case", "method", "per", "median", "quartiles", "rounds", "run", "GEMM share",
        "copy share", *peaks,
    ]  # fmt: skip
    rows = [
        _method_row(result, method, runs[result.case.name])[: len(header)]
        for result in results
        for method in result.methods
    ]
    return table(header, rows)


def series(results: Sequence[CaseResult]) -> list[str]:
    """Returns a heading and tables for each series of cases."""
    parts: list[str] = []
    for name, members in by_series(results).items():
        parts += [f"## By length: {name}", _series_table(members)]
        if _has_peaks(members):
            unit = members[0].case.unit
            parts += [f"Peak memory above the inputs per {unit}:", _peaks_table(members)]
    return parts


def by_series(
    results: Sequence[CaseResult], *, summarized: bool = False
) -> dict[str, list[CaseResult]]:
    """Returns the cases by series: of those that have a table each, or that one summarizes."""
    found: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.case.series is not None and result.case.summarized == summarized:
            found.setdefault(result.case.series, []).append(result)
    return found


def _series_table(members: Sequence[CaseResult]) -> str:
    *ours, rival = (method.name for method in members[0].methods)
    header = ["N", *ours, rival, *(f"{rival} / {name}" for name in ours)]
    return table(header, [_series_row(member, ours) for member in members])


def _series_row(member: CaseResult, ours: Sequence[str]) -> list[str]:
    medians = [_median(member, method) for method in member.methods]
    ratios = [member.method(name).over_last for name in ours]
    shown = (f"{ratio.median:.2f}" if ratio else "-" for ratio in ratios)
    return [f"{member.case.at:,}", *medians, *shown]


def _has_peaks(results: Sequence[CaseResult]) -> bool:
    return any(method.peak is not None for result in results for method in result.methods)


def _peaks_table(members: Sequence[CaseResult]) -> str:
    names = [method.name for method in members[0].methods]
    rows = [
        [f"{member.case.at:,}", *(_memory(method.peak_per_unit) for method in member.methods)]
        for member in members
    ]
    return table(["N", *names], rows)


def _memory(held: float | None) -> str:
    return "-" if held is None else quantity(held, "bytes")


def _outcome(result: CaseResult, outcome: TargetResult) -> list[str]:
    target, value = outcome.target, outcome.value
    sign = ">=" if target.at_least is not None else "<="
    measured = ["-", "-"] if value is None else _figure(result, target, value)
    return [*measured, f"{sign} {_shown(result, target, target.bound)}", REACHED[outcome.reached]]


def _figure(result: CaseResult, target: Target, value: Spread) -> list[str]:
    estimated = any(result.method(name).estimated for name in target.methods)
    mark = " (estimated)" if estimated else ""
    middle, low, high = (_shown(result, target, v) for v in (value.median, value.low, value.high))
    return [middle + mark, f"{low} to {high}"]


def _shown(result: CaseResult, target: Target, value: float) -> str:
    if target.of_limit:
        return f"{value:.0%}"
    return f"{value:.3g}" if target.denominator else quantity(value, result.case.quantity)


def _method_row(result: CaseResult, method: MethodResult, run: str) -> list[str]:
    row = [result.case.name, _named(method), result.case.unit, _median(result, method)]
    if method.value is None:
        return [*row, "-", "-", run, "-", "-", "-"]
    low, high = (quantity(v, result.case.quantity) for v in (method.value.low, method.value.high))
    shares = (method.share_of_gemm, method.share_of_copy)
    shown = ("-" if share is None else f"{share.median:.0%}" for share in shares)
    return [*row, f"{low} to {high}", str(method.rounds), run, *shown, _memory(method.peak)]


def _named(method: MethodResult) -> str:
    return f"{method.name} [{method.note}]" if method.note else method.name


def _median(result: CaseResult, method: MethodResult) -> str:
    if method.value is None:
        return method.status
    shown = quantity(method.value.median, result.case.quantity)
    return f"{shown} (estimated)" if method.estimated else shown


def quantity(value: float, kind: Quantity) -> str:
    """Returns seconds with a fitting prefix, or bytes in MiB."""
    if kind == "bytes":
        return f"{value / MIB:,.1f}".removesuffix(".0") + " MiB"
    scale, name = next((p for p in SECOND_PREFIXES if abs(value) >= p[0]), SECOND_PREFIXES[-1])
    return f"{value / scale:.3g} {name}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(words: str) -> str:
    """The words on one line that no bar cuts, such as those of an error."""
    return " ".join(words.replace("|", "/").split())
