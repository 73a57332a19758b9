"""Several seeds of one training: their runs, one row for all, and what is noise between two means.

The first seed's run has the name of its variant, the others NAME-seedN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from linattn_lab.trainings import Summary, Variant

ERRORS = 2.0  # standard errors within which a difference is noise


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
    """Two standard errors of the mean; None of one value."""
    return ERRORS * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def with_noise(row: Summary, name: str, show: Callable[[float | None], str]) -> str:
    """A metric of a row of `merge_seeds`, such as "1.502 ± 0.004"."""
    value, error = row["metrics"][name], row["errors"][name]
    return show(value) if error is None else f"{show(value)} ± {show(error)}"


def describe_difference(first: Sequence[float], second: Sequence[float]) -> str:
    """Whether the means of two groups of seeds differ by more than noise, in words."""
    if min(len(first), len(second)) < 2:
        return "one seed, which says nothing about the spread"
    error = math.hypot(*(noise(each) or 0.0 for each in (first, second)))
    inside = abs(mean(first) - mean(second)) <= error
    return "a difference within the noise of seeds" if inside else "a difference beyond their noise"
