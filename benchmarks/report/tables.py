"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measure.results import CaseResult, MethodResult, Spread, Target, TargetResult

MIB = 2**20
SECOND_PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
REACHED = {True: "yes", False: "**no**", None: "-"}
TARGETS = ("case", "target", "measured", "quartiles", "to reach", "reached", "run")
METHODS = (
    "case", "method", "per", "median", "quartiles", "rounds", "run", "GEMM share", "FMA share",
    "copy share", "peak memory",
)  # fmt: skip


def targets(results: Sequence[CaseResult], runs: Mapping[str, str]) -> str:
    """Returns one row for each target; `runs` names the run of each case."""
    rows = [
        [result.case.name, outcome.target.shows, *_outcome(outcome), runs[result.case.name]]
        for result in results
        for outcome in result.targets
    ]
    return table(TARGETS, rows) if rows else "No case of this theme has a target."


def measurements(results: Sequence[CaseResult], runs: Mapping[str, str]) -> str:
    """Returns one row for each method of each case that is in no series, which has its tables.

    Columns that are empty in every row are left out.
    """
    rows = [
        _method_row(result, method, runs[result.case.name])
        for result in results
        if result.case.series is None
        for method in result.methods
    ]
    if not rows:
        return "The tables above show all."
    columns = zip(METHODS, *rows, strict=True)
    header, *filled = zip(*(c for c in columns if set(c[1:]) != {"-"}), strict=True)
    return table(header, filled)


def _outcome(outcome: TargetResult) -> list[str]:
    target, value = outcome.target, outcome.value
    measured = ["-", "-"]
    if value is not None:
        median, low, high = (_shown(target, each) for each in value)
        measured = [median, f"{low} to {high}"]
    sign = ">=" if target.at_least is not None else "<="
    return [*measured, f"{sign} {_shown(target, target.bound)}", REACHED[outcome.reached]]


def _shown(target: Target, value: float) -> str:
    if target.denominator is not None:
        return f"{value:.3g}"
    shown = {"time": seconds, "peak": memory}.get(target.figure, "{:.0%}".format)
    return shown(value)


def _method_row(result: CaseResult, method: MethodResult, run: str) -> list[str]:
    name = f"{method.name} [{method.note}]" if method.note else method.name
    quartiles = "-" if method.value is None else " to ".join(map(seconds, method.value[1:]))
    shares = map(_percent, (method.share_of_gemm, method.share_of_fma, method.share_of_copy))
    rounds = str(method.rounds or "-")
    row = [result.case.name, name, result.case.unit, median(method), quartiles, rounds, run]
    return [*row, *shares, memory(method.peak)]


def _percent(share: Spread | None) -> str:
    return "-" if share is None else f"{share.median:.0%}"


def median(method: MethodResult) -> str:
    """The median, or why there is none."""
    return method.status if method.value is None else seconds(method.value.median)


def seconds(value: float) -> str:
    """Returns seconds with a fitting prefix."""
    scale, name = next((p for p in SECOND_PREFIXES if abs(value) >= p[0]), SECOND_PREFIXES[-1])
    return f"{value / scale:.3g} {name}"


def memory(value: float | None) -> str:
    """Returns bytes in MiB."""
    return "-" if value is None else f"{value / MIB:,.1f}".removesuffix(".0") + " MiB"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(words: str) -> str:
    """The text, such as an error, as one cell: on one line, without the bar of a table."""
    return " ".join(words.replace("|", "/").split())
