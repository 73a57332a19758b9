"""The report's plots as SVG, the same bytes from the same figures."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from replication.claims.claim import Figures
from replication.claims.generation import THROUGHPUT
from replication.experiments.cost import MNIST, Model
from replication.machine import ROOT

STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, and set in the page's font
    "svg.hashsalt": "linattn",
    "font.size": 11,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 9,
}
Points = Sequence[tuple[float, float]]
LENGTHS = {"mnist": 784, "cifar10": 3_072}
SPEEDS = (("one image", "1/seconds"), ("best batch of each", "best/images-per-second"))
WAYS = (("in PyTorch", "linear"), ("compiled", "linear-compiled"))
COUNTED = (16, 64, 256, 784, 1_568, 3_072, 6_144)


def svg(draw: Callable[[Axes], object]) -> str:
    """One panel, as wide as a phone can show it readably."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.9), layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' id="\w+_\d+"', "", text)  # of no use, and not unique beside other plots
    return " ".join(text.split()) + "\n"


def lines(
    axes: Axes, curves: Mapping[str, Points], xlabel: str, ylabel: str, **scales: str
) -> None:
    """Named curves; scales are those of the axes."""
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, **scales)
    axes.legend()


def by_length(figures: Figures, what: str, scale: float, ylabel: str) -> str | None:
    """Figure 1: what a sample costs over its length."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, value in figures.items():
        if match := re.fullmatch(rf"(.+)/(\d+)/{what}", name):
            curves.setdefault(match[1], []).append((int(match[2]), scale * value))
    if not curves:
        return None
    return svg(lambda axes: lines(axes, curves, "N", ylabel, xscale="log", yscale="log"))


def counted(model: Model, rival: str, length: int) -> float:
    """How many times the operations of linear attention a rival needs for a sequence."""
    at = Model(model.layers, model.heads, model.head_dim, model.ffn, length)
    ours, theirs = (at.generating(way, 1).operations for way in ("linear", rival))
    return theirs / ours


def speed_up(rival: str, measured: Mapping[str, Figures], grid: Figures) -> str:
    """How many times as fast linear attention is, over the length: counted, measured, the paper's.

    Args:
        rival: "softmax", which reruns, or "stateful-softmax", which keeps keys and values.
        measured: figures of the experiments of generation, by shape.
        grid: figures of the experiment that varies length and batch; may be empty.
    """

    def draw(axes: Axes) -> None:
        points = [(n, counted(MNIST, rival, n)) for n in COUNTED]
        axes.plot(*zip(*points, strict=True), "--", color="gray", label="operations alone")
        for batch, ratios in by_batch(grid, rival).items():
            axes.plot(*zip(*ratios, strict=True), marker="o", label=f"measured, batch {batch}")
        for (kind, name), (words, way) in itertools.product(SPEEDS, WAYS):
            at = [(LENGTHS[x], r) for x, f in measured.items() if (r := ratio(f, way, rival, name))]
            if at:
                axes.plot(*zip(*at, strict=True), "s-", label=f"here, {kind}, {words}")
        paper = [(LENGTHS[x], v["linear"] / v[rival]) for x, v in THROUGHPUT.items()]
        axes.plot(
            *zip(*paper, strict=True), "k*", markersize=11, label="the paper, GPU, best batch"
        )
        axes.set(xlabel="tokens of a sequence", ylabel="times as fast", xscale="log", yscale="log")
        axes.legend()

    return svg(draw)


def ratio(figures: Figures, way: str, rival: str, name: str) -> float | None:
    """Linear attention's speed over a rival's, by seconds or by images per second."""
    ours, theirs = figures.get(f"{way}/{name}"), figures.get(f"{rival}/{name}")
    if not ours or not theirs:
        return None
    return theirs / ours if name.endswith("seconds") else ours / theirs


def by_batch(grid: Figures, rival: str) -> dict[int, list[tuple[float, float]]]:
    """The speed-up in PyTorch over a rival by batch, over the length."""
    known: dict[int, list[tuple[float, float]]] = {}
    for name in grid:
        way, length, batch, what = name.split("/")
        gain = ratio(grid, "linear", rival, f"{length}/{batch}/{what}")
        if way == "linear" and gain is not None:
            known.setdefault(int(batch), []).append((int(length), gain))
    return known


def learned(runs: Iterable[tuple[str, Path]], split: str, field: str, ylabel: str,
            **scales: str) -> str | None:  # fmt: skip
    """Curves of training, from the runs' own records."""
    curves = {name: _points(ROOT / run / "metrics.jsonl", split, field) for name, run in runs}
    known = {name: points for name, points in curves.items() if points}
    return svg(lambda axes: lines(axes, known, "updates", ylabel, **scales)) if known else None


def _points(file: Path, split: str, field: str) -> list[tuple[float, float]]:
    if not file.exists():
        return []
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [(r["step"], r[field]) for r in rows if r["split"] == split and field in r]
