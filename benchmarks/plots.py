"""The picture of a theme: its ratios as bars, or its times by length."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import CaseResult, Ratio
from benchmarks.series import by_series, gains_over, points
from linattn_lab.plots import Panel, plot_bars, plot_panels

RIVAL = "softmax SDPA"
BARS = tomllib.loads(Path(__file__).with_name("pictures.toml").read_text("utf-8"))
UNITS = (("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6))


def plot_theme(path: Path, theme: str, results: Mapping[str, CaseResult]) -> Path | None:
    """Draws what the theme's document begins with; returns `path`, None with nothing to draw."""
    if series := by_series(results):
        more: dict[str, Any] = {}
        if theme == "crossover":
            curves = {_heads(name): gains_over(each, RIVAL) for name, each in series.items()}
            label = f"times as fast as {RIVAL}"
            panels = [Panel("length", curves, "causal, forward and backward, float32, CPU")]
            more = {"level": 1.0, "kind": lambda heads: heads.rpartition(" of ")[2]}
        else:
            label, scale = choose_unit(results.values())
            panels = [_times_panel(name, each, scale) for name, each in series.items()]
        return plot_panels(path, panels, ylabel=label, log_scale=True, log_x=True, **more)
    bars = choose_bars(theme, results)
    return plot_bars(path, bars, name_ratio(theme)) if bars else None


def name_ratio(theme: str) -> str:
    """What the ratios of a theme count."""
    return {"parallel": "processor time, one process / a rank of two"}.get(theme, "times as fast")


def list_ratios(results: Mapping[str, CaseResult]) -> list[tuple[str, Ratio]]:
    """Returns each comparison of the cases that are in no series, with the case's name."""
    return [
        (name, ratio)
        for name, result in results.items()
        if result.series is None
        for ratio in result.ratios
    ]


def choose_bars(theme: str, results: Mapping[str, CaseResult]) -> dict[str, float]:
    """Returns the comparisons that the picture shows, by what stands beside their bars."""
    ratios = {
        # The theme is the document's title.
        f"{name.partition('/')[2]}: {each.denominator} / {each.numerator}": each.value.median
        for name, each in list_ratios(results)
    }
    chosen = {words: ratios[x] for words, x in BARS.get(theme, {}).items() if x in ratios}
    return chosen or {words.replace(": ", ":\n", 1): x for words, x in ratios.items()}


def choose_unit(results: Iterable[CaseResult]) -> tuple[str, float]:
    """Returns the largest unit in which no time is below a tenth, and how many a second has."""
    times = [x.seconds for result in results for x in result.methods if x.seconds]
    return next((x for x in UNITS if min(times, default=1.0) * x[1] >= 0.1), UNITS[-1])


def _heads(series: str) -> str:
    """The name of a series of the crossover in words: "8 heads of 32" for "D=M=32, H=8"."""
    shape = re.fullmatch(r"D=M=(\d+), H=(\d+)", series)
    if shape is None:
        return series
    width, heads = shape.groups()
    return f"{heads} head{'s' * (heads != '1')} of {width}"


def _times_panel(title: str, members: Sequence[CaseResult], scale: float) -> Panel:
    """The time of each method by length, the seconds times `scale`."""
    curves = {}
    for method in members[0].methods:
        if curve := points(members, method.name, lambda result: result.seconds):
            curves[method.name] = [(float(at), scale * seconds) for at, seconds in curve]
    return Panel("length", curves, title)
