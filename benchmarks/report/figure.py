"""Figure 1 of the paper from our results: time and memory against the length, both axes in logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure.results import CaseResult
from benchmarks.report.series import Members, Read, by_series, held, points, seconds
from benchmarks.report.tables import MIB


def draw(results: Sequence[CaseResult], path: Path) -> bool:
    """Writes the picture, a row for each series; returns False where no length was measured."""
    series = by_series(results)
    if not series:
        return False
    figure = Figure(figsize=(12, 4.5 * len(series)), layout="constrained")
    panels = figure.subplots(len(series), 2, squeeze=False)
    for (name, members), (left, right) in zip(series.items(), panels, strict=True):
        unit = members[0].case.unit
        _panel(left, members, f"milliseconds per {unit}", seconds, 1e3)
        _panel(right, members, f"peak memory per {unit}, MiB", held, 1 / MIB)
        left.set_title(name, fontsize=9)
    figure.savefig(path, dpi=110)
    return True


def _panel(axes: Axes, members: Members, label: str, read: Read, scale: float) -> None:
    names = dict.fromkeys(method.name for member in members for method in member.methods)
    for number, name in enumerate(names):
        known = [(at, scale * value) for at, value in points(members, name, read)]
        if known:  # the color is the method's in every panel, measured there or not
            axes.plot(*zip(*known, strict=True), marker="o", color=f"C{number}", label=name)
    if not axes.lines:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"{label}: not measured", ha="center")
        return
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="N", ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
