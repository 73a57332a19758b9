"""The report's plots as SVG, the same bytes from the same figures."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from replication.claims import BY_NAME, Figures
from replication.collect import Best, Stored, figures_of
from replication.report.curve import rows_of, runs
from replication.report.phrases import PAPER_IMAGES
from replication.report.speedups import (
    COMPILED,
    LENGTHS,
    OPERATOR,
    SPEEDS,
    WAYS,
    by_batch,
    counted,
    moved,
    paper_gain,
    ratio,
)

STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, and set in the page's font
    "svg.hashsalt": "linattn",
    "font.size": 11,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 10,
    "legend.frameon": False,
}
Points = Sequence[tuple[float, float]]
COUNTED = (16, 64, 256, 784, 1_568, 3_072, 6_144)
ORDER = ("linear", "softmax", "lsh-1", "lsh-4", "lstm")
KINDS = {"one": "one image", "best": "best batches"}
DRAWN = {"": WAYS[OPERATOR], ", compiled": WAYS[COMPILED]}
FASTER = {"xlabel": "tokens of a sequence", "ylabel": "times as fast"}
DASHED = {"linestyle": "--", "linewidth": 1.0}
AHEAD = 40  # places at which a fitted curve is drawn
LOGARITHMIC = {"xscale": "log", "yscale": "log"}


def pictures(best: Best, with_runs: Best) -> dict[str, str]:
    """The plots by name.

    Args:
        best: the measurements that verdicts rest on.
        with_runs: those whose trained runs are drawn.
    """
    lengths, bits = figures_of(best, "lengths"), "bits/dim, validation images"
    plots = {
        "over-rerunning": speed_up("softmax", best),
        "over-cache": speed_up("stateful-softmax", best),
        "time": by_length(lengths, "time", 1e3, "milliseconds per sample"),
        "memory": by_length(lengths, "memory", 2**-20, "peak memory per sample, MiB"),
        "copy": learned(with_runs.get("copy"), "train", "loss", "nats per symbol", yscale="log"),
        "mnist": longer(with_runs.get("mnist")),
        "attentions": learned(with_runs.get("bits-mnist"), "eval", "bits_per_dim", bits),
        "speech": learned(
            with_runs.get("speech"), "eval", "phoneme_error_rate", "phoneme error rate"
        ),
    }
    return {name: text for name, text in plots.items() if text}


def svg(curves: Mapping[str, tuple[Points, dict[str, Any]]], **settings: Any) -> str:
    """Named curves with their style in one panel, small enough to be readable on a phone.

    A name that starts with "_" is not in the legend. The legend stands below, where no curve can
    run under it.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.3 + 0.12 * len(curves)), layout="constrained")
        axes: Axes = figure.subplots()
        for name, (points, style) in curves.items():
            axes.plot(*zip(*points, strict=True), label=name, **style)
        axes.set(**settings)
        figure.legend(loc="outside lower center", ncols=2)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # The plots' own ids are of no use, and not unique beside other plots.
    return " ".join(re.sub(r' id="\w+_\d+"', "", text[text.index("<svg") :]).split()) + "\n"


def by_length(figures: Figures, what: str, scale: float, ylabel: str) -> str:
    """Figure 1: what a sample costs over its length."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, value in figures.items():
        if match := re.fullmatch(rf"(.+)/(\d+)/{what}", name):
            curves.setdefault(match[1], []).append((int(match[2]), scale * value))
    return lines(curves, xlabel="N", ylabel=ylabel, **LOGARITHMIC)


def lines(curves: Mapping[str, Points], **settings: Any) -> str:
    """Curves of one style; empty for none."""
    style = {"marker": "o", "markersize": 3.5}
    return svg({name: (at, style) for name, at in curves.items()}, **settings) if curves else ""


def speed_up(rival: str, best: Best) -> str:
    """How many times as fast linear attention is, over the length: counted, measured, the paper's.

    Args:
        rival: "softmax", which reruns, or "stateful-softmax", which keeps keys and values.
    """
    curves: dict[str, tuple[Points, dict[str, Any]]] = {
        "by operations": ([(n, counted(rival, n)) for n in COUNTED], DASHED | {"color": "k"})
    }
    grid = by_batch(figures_of(best, "speedup"), rival)
    for color, (batch, points) in enumerate(grid.items()):
        style = {"color": f"C{color}"}
        curves[f"batch {batch}"] = (points, {"marker": "o", **style})
        bytes_ = [(n, gain) for n in COUNTED if (gain := moved(rival, n, batch)) is not None]
        if bytes_:
            curves[f"_{batch} by bytes"] = (bytes_, DASHED | style)
    pairs = itertools.product(SPEEDS, DRAWN.items())
    for color, (kind, (words, way)) in enumerate(pairs, len(grid)):
        measured = {n: figures_of(best, f"generation-{shape}") for shape, n in LENGTHS.items()}
        found = [(n, ratio(x, way, rival, SPEEDS[kind])) for n, x in measured.items()]
        if at := [(n, gain) for n, gain in found if gain is not None]:
            square = {"marker": "s", "linestyle": ":", "color": f"C{color}"}
            curves[f"{KINDS[kind]}{words}"] = (at, square)
    for kind, fill in (("one", "none"), ("best", "full")):
        paper = [(n, paper_gain(shape, rival, kind)) for shape, n in LENGTHS.items()]
        star = {"color": "k", "marker": "*", "markersize": 11, "linestyle": "", "fillstyle": fill}
        curves[f"{KINDS[kind]}, paper's GPU"] = (paper, star)
    return svg(curves, **FASTER, **LOGARITHMIC)


def longer(stored: Stored | None) -> str:
    """The longer trainings on MNIST: what was measured, fitted curves, and the paper's values."""
    curves: dict[str, tuple[Points, dict[str, Any]]] = {}
    for color, run in enumerate(runs(stored.trainings if stored else {})):
        style = {"color": f"C{color}"}
        curves[f"{run.name}, {run.of}"] = (run.points, {"marker": "o", "linestyle": "", **style})
        if run.curve is not None:
            first = run.points[0][0]
            at = [first * (PAPER_IMAGES / first) ** (k / AHEAD) for k in range(AHEAD + 1)]
            curves[f"{run.name}, fitted"] = ([(n, run.curve.at(n)) for n in at], DASHED | style)
            for side in (0, 1):
                bound = [(n, run.curve.between(n)[side]) for n in at]
                curves[f"_{run.name}, {side}"] = (bound, {"linewidth": 0.5, "alpha": 0.5, **style})
        claim = BY_NAME.get(f"table1/{run.name}/bits-per-dim")
        if claim is not None and (bits := claim.rule.number) is not None:
            line = [(run.images, bits), (PAPER_IMAGES, bits)]
            curves[f"{run.name}, the paper"] = (line, {"linestyle": ":", **style})
    return svg(curves, xlabel="images seen", ylabel="bits/dim", xscale="log") if curves else ""


def learned(stored: Stored | None, split: str, field: str, ylabel: str, **scales: str) -> str:
    """Curves of training, by the metrics of a measurement's trained runs."""
    known: dict[str, Points] = {}
    trained = stored.trainings if stored else {}
    for name in sorted(trained, key=_place):
        rows = rows_of(trained[name])
        points = [(r["step"], r[field]) for r in rows if r["split"] == split and field in r]
        if points:
            known[name] = points
    return lines(known, xlabel="updates", ylabel=ylabel, **scales)


def _place(name: str) -> int:
    """Where a training stands in a legend: by its attention, which its name begins with."""
    return next((k for k, each in enumerate(ORDER) if name.startswith(each)), len(ORDER))
