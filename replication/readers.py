"""Readers: from what a command wrote to figures by name.

A reader takes the folder of a run, and those of the runs that its experiment stands beside.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import linear_regression, median_high
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from benchmarks.results import CaseResult
from benchmarks.series import by_series, points
from linattn_core.errors import expected
from linattn_lab.store import Record, latest_results, read_model, read_records, record_file
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
WSJ = 37_416  # utterances of an epoch
BEST = "best/images-per-second"
BITS = "bits_per_dim"
PICTURES = ("samples", "completions")
CURVE_POINTS = 50  # that are kept of each split of a training


Positive = Annotated[float, Field(gt=0)]


class Named(RootModel[dict[str, float]]):
    """Figures by name."""

    root: Annotated[dict[str, float], Field(min_length=1)]


class Speed(BaseModel):
    """Of benchmark.json: a method at a batch."""

    method: str
    batch: int
    seconds_per_image: Positive
    images_per_second: Positive
    state_bytes_per_image: float


class Speeds(BaseModel):
    """What apps/pixel_generation/benchmark.py leaves."""

    speeds: list[Speed]
    largest_batches: dict[str, int] = {}


class Trained(BaseModel):
    """Of results.json: a training."""

    steps: int = 0
    metrics: dict[str, float | None]


class TrainedTwice(BaseModel):
    """The same for equal updates and in equal time."""

    equal_updates: Trained
    equal_time: Trained


class ComparedImages(BaseModel):
    """What apps/pixel_generation/compare.py leaves."""

    attentions: dict[str, TrainedTwice]


class ComparedSpeech(BaseModel):
    """What apps/ctc_speech/compare.py leaves."""

    runs: dict[str, Trained]


class Batch(BaseModel):
    """Updates of a batch; their seconds, unless it failed."""

    attention: str
    failure: str | None = None
    seconds: list[float] = []
    lengths: Annotated[list[int], Field(min_length=1)]


class Epoch(BaseModel):
    """What apps/ctc_speech/benchmark.py leaves."""

    epoch: list[Batch]


def pick(values: Mapping[str, float | None], name: str, file: Path) -> float:
    """The value of that name, which a file has to hold."""
    value = values.get(name)
    if value is None:
        raise ValueError(expected(str(file), name, f"only {', '.join(values)}"))
    return value


def flat(folder: Path) -> Figures:
    """The figures of a process of our own, which writes them by name."""
    return read_model(folder / "figures.json", Named).root


def read_cases(folder: Path) -> dict[str, CaseResult]:
    """What benchmarks left, on either device."""
    on_cpu, on_gpu = (record_file(folder.parent, folder.name, x) for x in ("cpu", "cuda"))  # type: ignore[arg-type]
    file = on_gpu if on_gpu.exists() else on_cpu
    return latest_results(read_records(file, Record[CaseResult]))


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
    measured = read_model(folder / "benchmark.json", Speeds)
    methods = [speed.method for speed in measured.speeds]
    eager = next((name for name in methods if name.startswith("linear (eager")), "")
    names = {"linear": "linear-compiled", eager: "linear"}
    figures: dict[str, float] = {}
    for speed in measured.speeds:
        name = names.get(speed.method, speed.method)
        if speed.batch == 1:
            figures[f"{name}/1/seconds"] = speed.seconds_per_image
        # The best batch comes after one image alone; where that is the best, there is no other.
        figures[f"{name}/{BEST}"] = speed.images_per_second
        figures[f"{name}/best/batch"] = speed.batch
        figures[f"{name}/state-bytes"] = speed.state_bytes_per_image
        if largest := measured.largest_batches.get(speed.method):
            figures[f"{name}/largest-batch"] = largest
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


def copied_sequences(folder: Path) -> Figures:
    """The loss on held-out sequences, and what the claims compare."""
    runs = find_trainings(folder)
    loss = {x: pick(run.summary()["metrics"], "loss", run.summary_file) for x, run in runs.items()}
    linear = pick(loss, "linear", folder)
    return {
        **{f"{name}/loss": value for name, value in loss.items()},
        **{f"{name}/loss-over-linear": value / linear for name, value in loss.items()},
        "linear/loss-above-softmax": linear - pick(loss, "softmax", folder),
    }


def trained_images(folder: Path) -> Figures:
    """Bits per dimension of the attentions after equal updates and in equal time.

    Those after equal updates are of test images where there are runs for them, and of validation
    images where they are points of the runs in equal time.
    """
    figures: dict[str, float] = {}
    for name, run in find_trainings(folder).items():
        summary = run.summary()
        metrics, updates = summary["metrics"], summary["steps"]
        bits = pick(metrics, BITS, run.summary_file)
        figures |= {f"{name}/bits": bits, f"{name}/updates": updates}
        for picture in PICTURES:
            if (run.path / f"{picture}.png").exists():
                alone = pick(metrics, "independent_pixels_bits_per_dim", run.summary_file)
                figures[f"{name}/updates-drawn"] = updates
                figures[f"{name}/{picture}-over-independent"] = bits / alone
    file = folder / "results.json"
    for name, result in read_model(file, ComparedImages).attentions.items():
        figures[f"{name}/bits-equal-time"] = pick(result.equal_time.metrics, BITS, file)
        curve = result.equal_updates
        if BITS not in curve.metrics:  # trained for equal time alone
            figures[f"{name}/bits"] = pick(curve.metrics, f"validation_{BITS}", file)
            figures[f"{name}/updates"] = curve.steps
    return figures


def speech_errors(folder: Path) -> Figures:
    """Phoneme error rates of the dev set in percent: greedy, with the last weights, of seed 0.

    Other seeds ("-seedN") are left out: not every model has them, and all are compared alike.
    """
    file = folder / "results.json"
    return {
        f"{name}/per": 100 * pick(run.metrics, "dev_phoneme_error_rate", file)
        for name, run in read_model(file, ComparedSpeech).runs.items()
        if "-seed" not in name
    }


def speech_epochs(folder: Path) -> Figures:
    """Seconds per epoch of WSJ, from batches that stand for it."""
    times, utterances = defaultdict[str, float](float), defaultdict[str, int](int)
    for batch in read_model(folder / "benchmark.json", Epoch).epoch:
        if batch.seconds and not batch.failure:
            times[batch.attention] += median_high(batch.seconds)
            utterances[batch.attention] += len(batch.lengths)
    return {f"{x}/seconds-per-epoch": WSJ / utterances[x] * y for x, y in times.items()}


READERS: Mapping[str, Callable[..., Figures]] = {
    each.__name__: each
    for each in (
        flat, lengths, decoding, generation, generation_beside_cpu, copied_sequences,
        trained_images, speech_errors, speech_epochs,
    )
}  # fmt: skip
