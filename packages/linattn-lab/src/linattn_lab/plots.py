"""Curves and bars as pictures, each a PNG whose text can be read at 700 pixels of width."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from linattn_core.errors import expected
from linattn_lab.tables import figure
from linattn_models.basics.files import replace_file
from linattn_models.training import RunFolder
from linattn_models.training.metrics import NOT_MEASURED

INCHES = 7.0  # at 700 pixels, a letter of 8 points is then 11 pixels high
FONT = 8
KINDS = ("linear", "softmax", "lsh", "lstm")  # each with one color in every picture
DASHES = ("-", "--", ":", "-.")
Line = Mapping[str, Any]  # of metrics.jsonl
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One panel of a plot: the label of its x-axis, and the points (x, y) of each curve by name.

    The `errors` of a curve are half the height of a band around it, at each of its points.
    """

    xlabel: str
    curves: Mapping[str, Points]
    title: str = ""
    errors: Mapping[str, Sequence[float]] = field(default_factory=dict)


def points(lines: Iterable[Line], quantity: str, *, split: str, scale: float = 1.0) -> Points:
    """The values of `quantity` in `split`, each at `scale` times its step; null is NaN.

    Args:
        lines: of a run's `metrics.jsonl`, as `RunFolder.metrics` reads them.
    """
    return [
        (scale * line["step"], math.nan if line[quantity] is None else float(line[quantity]))
        for line in lines
        if line["split"] == split and quantity in line
    ]


def plot_run(run: RunFolder) -> Path:
    """Draws each quantity of the run's `metrics.jsonl` over the steps; returns `curve.png` in it.

    Raises:
        ValueError: if there is nothing to draw.
    """
    panels = run_panels(run.metrics())
    if not panels:
        raise ValueError(expected(str(run.metrics_file), "a measurement to draw", "none"))
    return plot_panels(run.path / "curve.png", panels)


def run_panels(lines: Sequence[Line]) -> list[Panel]:
    """A panel for each quantity that a run logged, loss first, with a curve for each split."""
    splits = sorted({line["split"] for line in lines})
    quantities = {name for line in lines for name in line.keys() - NOT_MEASURED}
    panels = []
    for quantity in sorted(quantities, key=lambda name: (name != "loss", name)):
        curves = {split: points(lines, quantity, split=split) for split in splits}
        shown = {split: curve for split, curve in curves.items() if curve}
        panels.append(Panel("step", shown, quantity.replace("_", " ")))
    return panels


def kind_of(name: str) -> str:
    """The kind of attention that a name begins with, else the name."""
    return next((kind for kind in KINDS if name.startswith(kind)), name)


def plot_panels(
    path: Path,
    panels: Sequence[Panel],
    *,
    ylabel: str = "",
    log_scale: bool = False,
    log_x: bool = False,
    level: float | None = None,
    kind: Callable[[str], str] = kind_of,
) -> Path:
    """Draws panels side by side as a PNG at `path`; returns `path`.

    Args:
        path: the PNG file.
        panels: what to draw.
        ylabel: a label for the y-axis, whose scale all panels then share; without it each panel has
            its own scale.
        log_scale: whether the y-axis is logarithmic.
        log_x: whether the x-axis is.
        level: where a horizontal line separates gains from losses.
        kind: by a curve's name, what it shares with others: these get one color.
    """
    shared = bool(ylabel)
    # Below the panels: many curves leave no room for a legend among them.
    below = shared or (len(panels) > 1 and len({tuple(panel.curves) for panel in panels}) == 1)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    columns = 4 if len(panels) > 1 else 3
    lines = -(-len(names) // columns)
    styles = choose_styles(names, kind)
    size = (max(5.2, INCHES / 2 * len(panels)), 2.8 + 0.2 * lines * below)
    drawing = Figure(figsize=size, layout="constrained")
    axes = drawing.subplots(1, len(panels), sharey=shared, squeeze=False)[0]
    for place, panel in zip(axes, panels, strict=True):
        for name, curve in panel.curves.items():
            marker = "o" if len(curve) < 40 else None
            xs, ys = zip(*curve, strict=True) if curve else ((), ())
            place.plot(xs, ys, label=name, marker=marker, ms=3, lw=1.2, **styles[name])
        place.set_xlabel(panel.xlabel, fontsize=FONT)
        place.set_yscale("log" if log_scale else "linear")
        place.set_title(textwrap.fill(panel.title, 45), fontsize=FONT)
        place.tick_params(labelsize=FONT)
        if log_x:
            place.set(xscale="log")
        else:
            label_axis(place.xaxis)
        place.grid(alpha=0.3)
        if level is not None:
            place.axhline(level, color="black", lw=0.8)
        if panel.curves and not below:
            place.legend(fontsize=FONT)
    for place, panel in zip(axes, panels, strict=True):
        place.set_ylim(place.get_ylim())  # panels may share limits, which now include every curve
        for name, errors in panel.errors.items():
            x, y = np.reshape(panel.curves[name], (-1, 2)).T
            place.fill_between(x, y - errors, y + errors, alpha=0.2, lw=0, fc=styles[name]["color"])
        for axis in (place.xaxis,) * log_x + (place.yaxis,) * log_scale:
            label_log_axis(axis)
    axes[0].set_ylabel(ylabel, fontsize=FONT)
    if below:
        curves = axes[0].get_legend_handles_labels()
        drawing.legend(
            *curves, loc="outside lower center", ncols=columns, handlelength=3, fontsize=FONT
        )
    for text in drawing.findobj(Text):
        text.set_parse_math(False)  # a name of a run or of a quantity is no formula
    return _write_png(path, drawing)


def choose_styles(names: Iterable[str], kind: Callable[[str], str] = kind_of) -> dict[str, Any]:
    """The color of each name's kind, and dashes by which those of one kind differ."""
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(kind(name), []).append(name)
    others = itertools.cycle((5, 9, 8, 6, 7, 4))
    styles = {}
    for each, group in members.items():
        color = KINDS.index(each) if each in KINDS else next(others)
        for number, name in enumerate(group, color * (kind is kind_of)):
            styles[name] = {"color": f"C{color}", "ls": DASHES[number % len(DASHES)]}
    return styles


def plot_bars(path: Path, bars: Mapping[str, float], xlabel: str) -> Path:
    """Draws ratios as bars from 1 on a logarithmic axis, as a PNG at `path`; returns `path`.

    Args:
        path: the PNG file.
        bars: ratios above 0, by what stands beside each bar; those below 1 are red.
        xlabel: a label for the axis.
    """
    lines = max(label.count("\n") for label in bars) + 1
    height = 0.8 + (0.12 + 0.13 * lines) * len(bars)
    drawing = Figure(figsize=(INCHES, height), layout="constrained")
    axes = drawing.subplots()
    places, values = range(len(bars)), list(bars.values())
    colors = ["C0" if value > 1 else "C3" for value in values]
    axes.barh(places, [value - 1 for value in values], left=1, height=0.7, color=colors)
    for place, value in zip(places, values, strict=True):
        side, shift = ("left", 3) if value > 1 else ("right", -3)
        axes.annotate(
            figure(value), (value, place), (shift, 0),
            textcoords="offset points", ha=side, va="center", fontsize=FONT,
        )  # fmt: skip
    axes.set_yticks(places, list(bars), fontsize=FONT, parse_math=False)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(xlabel, fontsize=FONT)
    axes.tick_params(axis="x", labelsize=FONT)
    axes.margins(x=0.2, y=0.01)  # beside a bar is room for its number
    axes.axvline(1, color="black", lw=0.8)
    axes.grid(axis="x", alpha=0.3)
    label_log_axis(axes.xaxis)
    if 1 not in (ticks := axes.get_xticks()):
        axes.set_xticks(sorted([*ticks, 1]))
    return _write_png(path, drawing)


def _write_png(path: Path, drawing: Figure) -> Path:
    picture = io.BytesIO()
    drawing.savefig(picture, format="png", dpi=120)
    replace_file(path, picture.getvalue())
    return path


def label_axis(axis: Axis) -> None:
    """Ticks at whole numbers, because updates are whole; at fractions on an axis that is short."""
    axis.set_major_locator(MaxNLocator(6, integer=True))
    axis.set_major_formatter(_write_tick)


def label_log_axis(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written as 0.2 rather than 2 x 10^-1.

    Over more than four powers, only these have ticks. Where fewer than three ticks are within the
    limits, they are evenly spaced numbers instead.
    """
    low, high = axis.get_view_interval()
    locator = LogLocator(subs=(1, 2, 5) if high <= 1e4 * low else (1,))
    within = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    axis.set_major_locator(locator if len(within) > 2 else MaxNLocator(6))
    axis.set_major_formatter(_write_tick)
    axis.set_minor_formatter(NullFormatter())


def _write_tick(x: float, place: float) -> str:
    return f"{x:,.0f}" if x == int(x) else f"{x:g}"
