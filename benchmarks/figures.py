"""Figures by name of what was measured, from which the replication reads: by theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import linear_regression

from benchmarks.cases import images
from benchmarks.cases.speech import EPOCH, UTTERANCES
from benchmarks.results import CaseResult
from benchmarks.series import by_series, points
from linattn_lab.store import Record, latest_results, read_records, record_files

LINEAR = ("linear (cpu)", "linear (cuda)", "linear (torch)")
RIVALS = ("softmax, N x N", "softmax SDPA", "lsh-1", "lsh-4", "lsh-8")
QUANTITIES = (
    ("time", attrgetter("seconds"), "exponent"),
    ("memory", attrgetter("peak_per_unit"), "memory-exponent"),
)
STEP_CASE = "decoding/steps/one-image"
STEPS = {"linear (eager)": "linear", "stateful softmax": "stateful-softmax"}
FIT_FROM, FEWEST_POINTS = 4_096, 2  # lengths of which an exponent is fitted

Results = Mapping[str, CaseResult]
Figures = dict[str, float]


def read_figures(folder: Path) -> Figures:
    """The figures of all themes in a folder, which has results of one machine."""
    figures: Figures = {}
    for theme, read in THEMES.items():
        for file in record_files(folder, theme):
            figures |= read(latest_results(read_records(file, Record[CaseResult])))
    return figures


def lengths(results: Results) -> Figures:
    """Figure 1: seconds and bytes per sample by length, exponents, and least ratios to linear.

    They are of both passes; documents of a GPU hold those of the forward pass alone, too.
    """
    series = by_series(results)
    members = [x for name, each in series.items() if "forward and backward" in name for x in each]
    names = {method.name for member in members for method in member.methods}
    linear = next((name for name in LINEAR if name in names), "")
    figures: Figures = {}
    for what, quantity, growth in QUANTITIES:
        ours = dict(points(members, linear, quantity))
        for name in (linear, *(rival for rival in RIVALS if rival in names)):
            values = points(members, name, quantity)
            label = "linear" if name == linear else name
            figures |= {f"{label}/{length}/{what}": value for length, value in values}
            # A short sequence's time is that of the call; a quick run has none but short ones.
            long = [point for point in values if point[0] >= FIT_FROM]
            fitted = long if len(long) >= FEWEST_POINTS else values
            if len(fitted) >= FEWEST_POINTS:
                figures[f"{label}/{growth}"] = fit_exponent(fitted)
            ratios = [value / ours[length] for length, value in values if length in ours]
            if name != linear and ratios:
                figures[f"{label}/least-{what}-over-linear"] = min(ratios)
    return figures


def fit_exponent(values: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line through log y over log x."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*values, strict=True))
    return linear_regression(xs, ys).slope


def steps(results: Results) -> Figures:
    """The time of the last step over that of the first, for one image."""
    times = times_of(results, STEP_CASE)
    figures: Figures = {}
    for method, label in STEPS.items():
        first = times.get(f"{method}, first step")
        later = [t for n, t in times.items() if n.startswith(method) and "first" not in n]
        if first and later:
            figures[f"{label}/last-over-first"] = later[0] / first
    return figures


def generation(results: Results) -> Figures:
    """Of each way: seconds for an image alone; images per second and size of the best batch."""
    figures: Figures = {}
    for shape in images.SHAPES:
        times = times_of(results, f"images/{shape}/{images.ONE}")
        figures |= {f"{name}/1/seconds": seconds for name, seconds in times.items()}
        best = results.get(f"images/{shape}/{images.BEST}")
        for method in () if best is None else best.methods:
            if method.seconds:
                figures[f"{method.name}/best/images-per-second"] = 1 / method.seconds
                figures[f"{method.name}/best/batch"] = method.units
                figures |= {f"{method.name}/{x}": y for x, y in method.figures.items()}
    return figures


def speedup(results: Results) -> Figures:
    """Seconds for each sequence, by way, length and batch."""
    return {
        f"{name.replace(', batch ', f'/{length}/')}/seconds": seconds
        for length in images.LENGTHS
        for name, seconds in times_of(results, f"speedup/{length}").items()
    }


def speech(results: Results) -> Figures:
    """Seconds per epoch of WSJ, of the models whose updates could be measured."""
    times = times_of(results, EPOCH)
    return {f"{name}/seconds-per-epoch": UTTERANCES * seconds for name, seconds in times.items()}


def times_of(results: Results, case: str) -> Figures:
    """Seconds of each method of a case that was measured."""
    if case not in results:
        return {}
    return {method.name: method.seconds for method in results[case].methods if method.seconds}


THEMES: dict[str, Callable[[Results], Figures]] = {
    "lengths": lengths, "decoding": steps, "images": generation, "speedup": speedup,
    "speech": speech,
}  # fmt: skip
