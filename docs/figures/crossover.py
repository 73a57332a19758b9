"""Draws from which length on linear attention is faster, out of what was measured.

    python docs/figures/crossover.py

reads docs/results/crossover and docs/results/lengths and writes crossover.svg beside this file.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
RIVAL = "softmax SDPA"
STYLE = {"svg.hashsalt": "linattn", "svg.fonttype": "none", "font.size": 9}
WIDTHS = {32: "-", 64: "--", 128: ":"}
HEADS = {1: "C1", 8: "C0", 64: "C2"}


def gains(theme: str) -> dict[str, list[tuple[int, float]]]:
    """Per series, (length, time of softmax over that of the fastest linear attention)."""
    points: dict[str, list[tuple[int, float]]] = {}
    records = json.loads((RESULTS / theme / "results.json").read_text())["records"]
    for case in (case for record in records for case in record["results"].values()):
        seconds = {x["name"]: x["value"][0] for x in case["methods"] if "value" in x}
        linear = [value for name, value in seconds.items() if name.startswith("linear")]
        if linear and RIVAL in seconds:
            point = (case["at"], seconds[RIVAL] / min(linear))
            points.setdefault(case["series"], []).append(point)
    return {series: sorted(pairs) for series, pairs in points.items()}


def draw() -> str:
    """Returns the picture as SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for width, style in WIDTHS.items():
            for heads, color in HEADS.items():
                points = gains("crossover")[f"D=M={width}, H={heads}"]
                label = f"{heads} head{'s' * (heads > 1)} of {width}"
                left.plot(*zip(*points, strict=True), style, color=color, label=label)
        _decorate(left, "the crossover")
        left.legend(fontsize=7)
        (points,) = gains("lengths").values()
        right.plot(*zip(*points, strict=True), "o-", color="C0", label="8 heads of 32")
        _decorate(right, "longer sequences")
        right.legend(fontsize=7)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    lines = buffer.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _decorate(axes: Axes, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelsize=8)
    axes.axhline(1, color="black", lw=0.8)
    axes.grid(alpha=0.3)
    axes.set(title=title, xlabel="length", ylabel="times as fast as softmax (SDPA)")


if __name__ == "__main__":
    (HERE / "crossover.svg").write_text(draw())
