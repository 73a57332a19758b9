"""The picture of a theme: its ratios as bars, or its times by length."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import CaseResult, Ratio
from benchmarks.series import by_series, gains_over, points
from linattn_lab.plots import Panel, plot_bars, plot_panels

RIVAL = "softmax SDPA"


def plot_theme(path: Path, theme: str, results: Mapping[str, CaseResult]) -> Path | None:
    """Draws what the theme's document begins with; returns `path`, None with nothing to draw."""
    if series := by_series(results):
        if theme == "crossover":
            curves = {_heads(name): gains_over(each, RIVAL) for name, each in series.items()}
            label, panels = f"times as fast as {RIVAL}", [Panel("length", curves)]
        else:
            label, panels = "seconds", [_times_panel(*each) for each in series.items()]
        by_heads: dict[str, Any] = {"level": 1.0, "hue": _dim} if theme == "crossover" else {}
        return plot_panels(path, panels, ylabel=label, log_scale=True, log_x=True, **by_heads)
    bars = {
        # The theme is the document's title.
        f"{name.partition('/')[2]}:\n{ratio.denominator} / {ratio.numerator}": ratio.value.median
        for name, ratio in leading_ratios(results)
    }
    return plot_bars(path, bars, "times as fast") if bars else None


def list_ratios(results: Mapping[str, CaseResult]) -> list[tuple[str, Ratio]]:
    """Returns each comparison of the cases that are in no series, with the case's name."""
    return [
        (name, ratio)
        for name, result in results.items()
        if result.series is None
        for ratio in result.ratios
    ]


def leading_ratios(results: Mapping[str, CaseResult]) -> list[tuple[str, Ratio]]:
    """Returns the first comparison of each case with each other method, which the bars show."""
    leading: dict[tuple[str, str], Ratio] = {}
    for name, ratio in list_ratios(results):
        leading.setdefault((name, ratio.numerator), ratio)
    return [(name, ratio) for (name, _), ratio in leading.items()]


def _heads(series: str) -> str:
    """The name of a series of the crossover in words: "8 heads of 32" for "D=M=32, H=8"."""
    shape = re.fullmatch(r"D=M=(\d+), H=(\d+)", series)
    if shape is None:
        return series
    width, heads = shape.groups()
    return f"{heads} head{'s' * (heads != '1')} of {width}"


def _dim(heads: str) -> str:
    """The size of the heads, whose curves have one hue."""
    return heads.rpartition(" of ")[2]


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
