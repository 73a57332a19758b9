"""Readers: from what a command wrote to figures by name.

A reader takes the folder of a run, and those of the runs that its experiment stands beside.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from statistics import linear_regression
from typing import Any

from benchmarks.cases.speech import EPOCH, UTTERANCES
from benchmarks.results import CaseResult
from benchmarks.series import by_series, points
from linattn_core.errors import expected
from linattn_lab.figures import FILE, read_figures
from linattn_lab.store import Record, latest_results, read_records, record_file
from linattn_models.training import RunFolder
from replication.claims import Figures

LINEAR = ("linear (cpu)", "linear (cuda)", "linear (torch)")
RIVALS = ("softmax, N x N", "softmax SDPA", "lsh-1", "lsh-4", "lsh-8")
QUANTITIES = (
    ("time", attrgetter("seconds"), "exponent"),
    ("memory", attrgetter("peak_per_unit"), "memory-exponent"),
)
STEP_CASE = "decoding/steps/one-image"
STEPS = {"linear (eager)": "linear", "stateful softmax": "stateful-softmax"}
FIT_FROM, FEWEST_POINTS = 4_096, 2  # lengths of which an exponent is fitted
BEST = "best/images-per-second"
PICTURES = ("samples", "completions")
CURVE_POINTS = 50  # that are kept of each split of a training


@contextmanager
def open_json(file: Path) -> Iterator[Any]:
    """The content of a file; a key or a number that it lacks is refused with the file's name."""
    try:
        yield json.loads(file.read_bytes())
    except (LookupError, TypeError, ValueError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ValueError(expected(str(file), "what its program writes", got)) from error


def flat(folder: Path) -> Figures:
    """The figures that commands wrote by name: those of trainings, under their names, and all."""
    runs = {name: run.path for name, run in find_trainings(folder).items()}
    own = {
        f"{name}/{figure}": value
        for name, run in runs.items()
        if (run / FILE).exists()
        for figure, value in read_figures(run).items()
    }
    return {**own, **read_figures(folder)}


def read_cases(folder: Path) -> dict[str, CaseResult]:
    """What benchmarks left, on either device."""
    on_gpu = sorted(folder.glob("results-*.json"))
    files = on_gpu or [record_file(folder.parent, folder.name, "cpu")]
    return latest_results(read_records(files[-1], Record[CaseResult]))


def lengths(folder: Path) -> Figures:
    """Figure 1: seconds and bytes per sample by length, exponents, and least ratios to linear.

    They are of both passes; documents of a GPU hold those of the forward pass alone, too.
    """
    series = by_series(read_cases(folder))
    members = [x for name, each in series.items() if "forward and backward" in name for x in each]
    names = {method.name for member in members for method in member.methods}
    linear = next((name for name in LINEAR if name in names), "")
    if not linear:
        raise ValueError(expected(str(folder), "times of linear attention, both passes", "none"))
    figures: dict[str, float] = {}
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


def decoding(folder: Path) -> Figures:
    """The time of the last step over that of the first, for one image."""
    cases = read_cases(folder)
    if STEP_CASE not in cases:
        raise ValueError(expected(str(folder), STEP_CASE, f"only {', '.join(cases)}"))
    times = {method.name: method.seconds for method in cases[STEP_CASE].methods}
    figures: dict[str, float] = {}
    for method, label in STEPS.items():
        first = times.get(f"{method}, first step")
        later = [t for n, t in times.items() if n.startswith(method) and "first" not in n]
        if first and later and later[0]:
            figures[f"{label}/last-over-first"] = later[0] / first
    return figures


def generation(folder: Path) -> Figures:
    """Of each method: seconds for an image alone, images per second and batch at the best batch,
    and the largest batch that was timed, which may not be faster.

    "linear" has its layers in PyTorch, step by step, and the fastest backend of the operator;
    "linear-compiled" has the compiled decoder.
    """
    figures: dict[str, float] = {}
    with open_json(folder / "benchmark.json") as record:
        methods = [speed["method"] for speed in record["speeds"]]
        eager = next((name for name in methods if name.startswith("linear (eager")), "")
        names = {"linear": "linear-compiled", eager: "linear"}
        for speed in record["speeds"]:
            name = names.get(speed["method"], speed["method"])
            if speed["batch"] == 1:
                figures[f"{name}/1/seconds"] = speed["seconds_per_image"]
            # The best batch comes after one image alone; where that is the best, there is no other.
            figures[f"{name}/{BEST}"] = speed["images_per_second"]
            figures[f"{name}/best/batch"] = speed["batch"]
            figures[f"{name}/state-bytes"] = speed["state_bytes_per_image"]
        for method, batch in record["largest_batches"].items():
            figures[f"{names.get(method, method)}/largest-batch"] = batch
    return figures


def generation_beside_cpu(folder: Path, cpu: Path, *others: Path) -> Figures:
    """A GPU's figures; beside them the seconds of this machine's CPU.

    Args:
        cpu: the run of the same images on the CPU.
        others: the runs of the other images, on the GPU and on the CPU; with them,
            "largest-cpu-over-gpu" is the larger ratio of MNIST and CIFAR-10.
    """
    here, figures = generation(cpu), {**generation(folder)}
    figures |= {f"{name}-cpu": here[name] for name in here if name.endswith("/1/seconds")}
    if others:
        ratios, other_ratios = cpu_over_gpu(cpu, folder), cpu_over_gpu(others[1], others[0])
        for method in ratios.keys() & other_ratios.keys():
            largest = max(ratios[method], other_ratios[method])
            figures[f"{method}/largest-cpu-over-gpu"] = largest
    return figures


def cpu_over_gpu(cpu: Path, gpu: Path) -> dict[str, float]:
    """By method, the seconds for one image on the CPU over those on the GPU."""
    end, here, there = "/1/seconds", generation(cpu), generation(gpu)
    names = (name for name in here if name.endswith(end) and name in there)
    return {name.removesuffix(end): here[name] / there[name] for name in names}


def find_trainings(folder: Path) -> dict[str, RunFolder]:
    """The run of each training by name; of runs with equal updates and in equal time the former."""
    for places in ("updates/*", "time/*", "*"):
        if files := sorted(folder.glob(f"{places}/summary.json")):
            return {file.parent.name: RunFolder(file.parent) for file in files}
    return {}


def read_curves(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The metrics of each training by name, at most `CURVE_POINTS` lines of a split."""
    runs = find_trainings(folder)
    return {name: thin_metrics(run.metrics()) for name, run in runs.items()}


def thin_metrics(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each split at most `CURVE_POINTS` lines, evenly spaced, the first and last included."""
    places = defaultdict[str, list[int]](list)
    for place, line in enumerate(lines):
        places[line["split"]].append(place)
    kept = {
        numbers[round(k * (len(numbers) - 1) / max(1, count - 1))]
        for numbers in places.values()
        for count in (min(CURVE_POINTS, len(numbers)),)
        for k in range(count)
    }
    return [lines[place] for place in sorted(kept)]


def speech_epochs(folder: Path) -> Figures:
    """Seconds per epoch of WSJ, of the models whose updates could be measured."""
    cases = read_cases(folder / "speech")
    if EPOCH not in cases:
        raise ValueError(expected(str(folder), EPOCH, f"only {', '.join(cases)}"))
    seconds = {method.name: method.seconds for method in cases[EPOCH].methods}
    return {f"{x}/seconds-per-epoch": UTTERANCES * y for x, y in seconds.items() if y}


READERS: Mapping[str, Callable[..., Figures]] = {
    each.__name__: each
    for each in (
        flat, lengths, decoding, generation, generation_beside_cpu, speech_epochs,
    )
}  # fmt: skip
