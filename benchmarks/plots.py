"""The picture of a theme: its ratios as bars, or its times by length."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results import CaseResult, Ratio
from benchmarks.series import by_series, gains_over, points
from linattn_lab.plots import Panel, label_log_axis, plot_panels
from linattn_models.files import replace_file

RIVAL = "softmax SDPA"
Bar = tuple[str, Ratio]


def plot_theme(path: Path, theme: str, results: Mapping[str, CaseResult]) -> Path | None:
    """Draws what the theme's document begins with; returns `path`, None with nothing to draw."""
    bars = list_ratios(results)
    if series := by_series(results):
        if theme == "crossover":
            curves = {name: gains_over(members, RIVAL) for name, members in series.items()}
            label, panels = f"time of {RIVAL} / linear", [Panel("length", curves)]
        else:
            label, panels = "seconds", [_times_panel(*each) for each in series.items()]
        return plot_panels(path, panels, ylabel=label, log_scale=True, log_x=True)
    return plot_bars(path, bars) if bars else None


def list_ratios(results: Mapping[str, CaseResult]) -> list[Bar]:
    """Returns each comparison of the cases that are in no series, with the case's name."""
    return [
        (name, ratio)
        for name, result in results.items()
        if result.series is None
        for ratio in result.ratios
    ]


def plot_bars(path: Path, bars: Sequence[Bar]) -> Path:
    """Draws a bar for each ratio, from 1: to the right what is faster, to the left what is not."""
    drawing = Figure(figsize=(9, 0.8 + 0.24 * len(bars)), layout="constrained")
    axes = drawing.subplots()
    values = [ratio.value.median for _, ratio in bars]
    places = range(len(bars))
    axes.barh(
        places, [value - 1 for value in values], left=1, height=0.7,
        color=["C0" if value > 1 else "C3" for value in values],
    )  # fmt: skip
    for place, value in zip(places, values, strict=True):
        side = "left" if value > 1 else "right"
        axes.annotate(
            f"{value:.3g}", (value, place), (3 if value > 1 else -3, 0), ha=side, va="center",
            textcoords="offset points", fontsize=7,
        )  # fmt: skip
    _decorate_bars(axes, bars)
    picture = io.BytesIO()
    drawing.savefig(picture, format="png", dpi=120)
    replace_file(path, picture.getvalue())
    return path


def _decorate_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    cases = [case.partition("/")[2] for case, _ in bars]  # the theme is the document's title
    names = [
        f"{case}: {ratio.denominator} / {ratio.numerator}"
        for case, (_, ratio) in zip(cases, bars, strict=True)
    ]
    axes.set_yticks(range(len(bars)), names, fontsize=7, parse_math=False)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="times as fast")
    axes.margins(x=0.12, y=0.01)
    axes.axvline(1, color="black", lw=0.8)
    axes.grid(axis="x", alpha=0.3)
    label_log_axis(axes.xaxis)


def _times_panel(title: str, members: Sequence[CaseResult]) -> Panel:
    """The seconds of each method by length."""
    curves = {
        method.name: [
            (float(at), seconds)
            for at, seconds in points(members, method.name, lambda result: result.seconds)
        ]
        for method in members[0].methods
    }
    measured = {name: curve for name, curve in curves.items() if curve}
    return Panel("length", measured, title)
