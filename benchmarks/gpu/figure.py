"""Figure 1 of the paper from our results: time and memory against the length, both axes in logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.runner import CaseResult, MethodResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20


def draw(results: Sequence[CaseResult], path: Path) -> str | None:
    """Writes the picture; returns the reason where there is none."""
    series = dict.fromkeys(result.case.series for result in results if result.case.series)
    if not series:
        return "no length was measured"
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed"
    figure = Figure(figsize=(6 * len(series), 8), layout="constrained")
    panels = figure.subplots(2, len(series), squeeze=False)
    for column, name in enumerate(series):
        members = [result for result in results if result.case.series == name]
        _panel(panels[0][column], members, "milliseconds", _milliseconds)
        _panel(panels[1][column], members, "peak memory, MiB", _mebibytes)
        panels[0][column].set_title(name, fontsize=9)
    figure.savefig(path, dpi=110)
    return None


def _panel(
    axes: Axes,
    members: Sequence[CaseResult],
    label: str,
    read: Callable[[MethodResult], float | None],
) -> None:
    names = dict.fromkeys(method.name for member in members for method in member.methods)
    for name in names:
        points = [(member.case.at, read(member.method(name))) for member in members]
        known = [(at, value) for at, value in points if at is not None and value]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", label=name)
    if not axes.lines:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"{label}: not measured", ha="center")
        return
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="N", ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _milliseconds(method: MethodResult) -> float | None:
    return None if method.value is None else method.value.median * 1e3


def _mebibytes(method: MethodResult) -> float | None:
    return None if method.peak is None else method.peak / MIB
