"""Several seeds of one training: their runs, one row for all, and what is noise between two means.

The first seed's run has the name of its variant, the others NAME-seedN. A figure of several seeds
is their mean, and FIGURE/error beside it has two standard errors. A difference of two means within
two standard errors of it is noise. With few seeds this is a mild rule: by Student's t, two equal
trainings of three seeds each differ by more in about one of nine cases, of two in one of five.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any, Literal, get_args

from linattn_lab import tables
from linattn_lab.plots import Points
from linattn_lab.trainings import Summary, Variant

ERRORS = 2.0  # standard errors within which a difference is noise

Figures = Mapping[str, float | None]
Show = Callable[[float | None], str]
Judgement = Literal["less", "within noise", "more", "one seed"]
BEYOND = "a difference beyond the noise of seeds"
IN_WORDS: Mapping[Judgement, str] = {
    "one seed": "one seed, which says nothing about the spread",
    "within noise": "a difference within the noise of seeds",
    "less": BEYOND,
    "more": BEYOND,
}


def repeat(variants: Sequence[Variant], seeds: int) -> list[Variant]:
    """Each variant with so many seeds, its own and those after it; one seed after the other."""
    repeated = []
    for number in range(seeds):
        for variant in variants:
            seed = variant.flags.seed + number
            name = f"{variant.name}-seed{seed}" if number else variant.name
            repeated.append(replace(variant, name=name, flags=replace(variant.flags, seed=seed)))
    return repeated


def base_name(name: str) -> str:
    """The name of a run's variant."""
    return re.sub(r"-seed\d+$", "", name)


def merge_seeds(rows: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """A row for each variant: the means of its runs' metrics, with their noise as "errors"."""
    groups: dict[str, list[Summary]] = {}
    for name, row in rows.items():
        groups.setdefault(base_name(name), []).append(row)
    return {name: _merge(runs) for name, runs in groups.items()}


def _merge(runs: Sequence[Summary]) -> dict[str, Any]:
    metrics = {name: [run["metrics"][name] for run in runs] for name in runs[0]["metrics"]}
    merged = {
        **runs[0],
        "seeds": len(runs),
        "metrics": {name: None if None in x else mean(x) for name, x in metrics.items()},
        "errors": {name: None if None in x else noise(x) for name, x in metrics.items()},
    }
    if "equal_time" in merged:
        merged["equal_time"] = _merge([run["equal_time"] for run in runs])
    return merged


def noise(values: Sequence[float]) -> float | None:
    """Two standard errors of the mean; None of one value, NaN where one is not finite."""
    if len(values) < 2:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    return ERRORS * stdev(values) / math.sqrt(len(values))


def average_curves(
    curves: Mapping[str, Points],
) -> tuple[dict[str, Points], dict[str, list[float]]]:
    """The mean curve of each variant, where all of its seeds have points, and its noise there."""
    groups: dict[str, list[dict[float, float]]] = {}
    for name, curve in curves.items():
        groups.setdefault(base_name(name), []).append(dict(curve))
    means, errors = dict[str, Points](), dict[str, list[float]]()
    for name, seeds in groups.items():
        shared = {x: [y[x] for y in seeds] for x in seeds[0] if all(x in y for y in seeds)}
        means[name] = [(x, mean(ys)) for x, ys in shared.items()]
        errors[name] = [noise(ys) or 0.0 for ys in shared.values()]
    return means, errors


def with_noise(row: Summary, name: str, show: Show | None = None) -> str:
    """A metric of a row of `merge_seeds`, such as "1.502 ± 0.004"; by default with three digits."""
    return _with_error(row["metrics"][name], row["errors"][name], show)


def figure_with_noise(figures: Figures, name: str) -> str:
    """The same of a figure."""
    return _with_error(figures.get(name), figures.get(error_name(name)))


def _with_error(value: float | None, error: float | None, show: Show | None = None) -> str:
    shown = (show or tables.figure)(value)
    if error is None:
        return shown
    if show is not None:
        return f"{shown} ± {show(error)}"
    # As many decimals as the value has, and more if the error would be shown as 0.
    first = -math.floor(math.log10(error)) if error > 0 else 0
    return f"{shown} ± {error:,.{max(first, len(shown.partition('.')[2]))}f}"


def error_name(figure: str) -> str:
    """The figure with the two standard errors of another."""
    return f"{figure}/error"


def read_figures(
    rows: Mapping[str, Summary], metric: str, figure: str, scale: float = 1.0
) -> dict[str, float | None]:
    """A metric of rows of `merge_seeds` as ROW/FIGURE, and its error where it has several seeds."""
    figures: dict[str, float | None] = {}
    for name, row in rows.items():
        value, error = row["metrics"][metric], row["errors"][metric]
        figures[f"{name}/{figure}"] = None if value is None else scale * value
        if error is not None:
            figures[error_name(f"{name}/{figure}")] = scale * error
    return figures


def error_of_difference(figures: Figures, *names: str) -> float | None:
    """Two standard errors of the difference of figures; None where one of them has one seed."""
    errors = [error for x in names if (error := figures.get(error_name(x))) is not None]
    return math.hypot(*errors) if len(errors) == len(names) else None


def judge_difference(difference: float, error: float | None) -> Judgement:
    """Whether a difference is less or more than nothing, beyond two standard errors of it."""
    if error is None:
        return "one seed"
    if abs(difference) > error:
        return "more" if difference > 0 else "less"
    return "within noise"  # NaN, too: it ranks nothing


def describe_difference(figures: Figures, first: str, second: str) -> str:
    """What the spread of seeds says of the difference of two figures, in words."""
    values = [figures.get(x) for x in (first, second)]
    if values[0] is None or values[1] is None:
        return "not measured"
    error = error_of_difference(figures, first, second)
    return IN_WORDS[judge_difference(values[0] - values[1], error)]


def compare_rows(figures: Figures, figure: str, baseline: str) -> str:
    """Which rows have less or more of a figure than one of them, in words; empty without it."""
    own = f"{baseline}/{figure}"
    groups: dict[Judgement, list[str]] = {x: [] for x in get_args(Judgement)}
    for name in (x for x in figures if x.endswith(f"/{figure}") and x != own):
        value, other = figures[name], figures.get(own)
        if value is not None and other is not None:
            error = error_of_difference(figures, name, own)
            groups[judge_difference(value - other, error)].append(name.removesuffix(f"/{figure}"))
    return "; ".join(f"{group} for {', '.join(names)}" for group, names in groups.items() if names)
