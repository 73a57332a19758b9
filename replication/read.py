"""Readers: from what a command wrote to figures by name; no figures where a file is missing.

A reader takes the folder of a run, and those of the runs that its experiment stands beside.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import linear_regression, median_high
from typing import Any

from benchmarks.report.document import Document, Run, read
from benchmarks.report.series import Members, Points, by_series, held, points, seconds
from replication.claims import Figures
from replication.validation import loaded, number, reading, require_type

LINEAR = ("linear (cpu)", "linear (cuda)", "linear (torch)")
RIVALS = ("softmax, N x N", "softmax SDPA", "lsh-1", "lsh-4", "lsh-8")
QUANTITIES = (("time", seconds, "exponent"), ("memory", held, "memory-exponent"))
BOTH_PASSES = "forward and backward"  # in the name of a series
STEPS = {"linear (eager)": "linear", "stateful softmax": "stateful-softmax"}
FIT_FROM, FEWEST_POINTS = 4_096, 2  # lengths of which an exponent is fitted
WSJ = 37_416  # utterances of an epoch
SUMMARY, METRICS = "summary.json", "metrics.jsonl"  # of a run
RESULTS_FILE = "results.json"  # of all runs of an experiment
PICTURES = ("samples", "completions")


def flat(folder: Path) -> Figures:
    """The figures of a process of our own, which writes them by name."""
    with loaded(folder / "figures.json") as record:
        return {name: number(record, name) for name in record}


@contextlib.contextmanager
def document(folder: Path) -> Iterator[Document]:
    """What benchmarks left, on either device; where both are, as in docs/results, of the CPU."""
    on_gpu = folder / "results-cuda.json"
    file = folder / RESULTS_FILE
    device = "cuda" if on_gpu.exists() and not file.exists() else "cpu"
    with reading(on_gpu if device == "cuda" else file, "what benchmarks write"):
        measured = read(folder.parent, folder.name, device)
        for run in measured.runs:
            require_type(run, Run, "a run")
        yield measured


def lengths(folder: Path) -> Figures:
    """Figure 1: seconds and bytes per sample by length, exponents, and least ratios to linear.

    They are of both passes; documents of a GPU hold those of the forward pass alone, too.
    """
    with document(folder) as measured:
        series = by_series(measured.results)
        members = next((series[name] for name in series if BOTH_PASSES in name), ())
        figures = _by_length(members)
        require_type(figures, Figures, "figures")
        return figures


def _by_length(members: Members) -> Figures:
    figures: dict[str, float] = {}
    names = {method.name for member in members for method in member.methods}
    linear = [name for name in LINEAR if name in names][:1]
    for what, quantity, growth in QUANTITIES:
        ours: dict[int, float] = {}
        for name in [*linear, *(rival for rival in RIVALS if rival in names)]:
            known, shown = points(members, name, quantity), "linear" if name in linear else name
            figures |= {f"{shown}/{at}/{what}": value for at, value in known}
            # A short sequence's time is that of the call; a quick run has none but short ones.
            long = [point for point in known if point[0] >= FIT_FROM]
            fitted = long if len(long) >= FEWEST_POINTS else known
            if len(fitted) >= FEWEST_POINTS:
                figures[f"{shown}/{growth}"] = exponent(fitted)
            if name in linear:
                ours = dict(known)
            elif ratios := [value / ours[at] for at, value in known if at in ours]:
                figures[f"{shown}/least-{what}-over-linear"] = min(ratios)
    return figures


def exponent(at: Points) -> float:
    """The slope of the least-squares line through log y over log x."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*at, strict=True))
    return linear_regression(xs, ys).slope


def decoding(folder: Path) -> Figures:
    """The time of the last step over that of the first, for one image."""
    figures: dict[str, float] = {}
    with document(folder) as measured:
        cases = {result.case.name: result for result in measured.results}
        case = cases.get("decoding/steps/one-image")
        values = {} if case is None else {m.name: m.seconds for m in case.methods}
        for method, shown in STEPS.items():
            later = (v for n, v in values.items() if n.startswith(method) and "first" not in n)
            if (first := values.get(f"{method}, first step")) and (last := next(later, None)):
                figures[f"{shown}/last-over-first"] = last / first
    return figures


def generation(folder: Path) -> Figures:
    """Of each method: seconds for an image alone, images per second and batch at the best batch,
    and the largest batch that was timed, which may not be faster.

    "linear" has its layers in PyTorch, step by step, and the fastest backend of the operator;
    "linear-compiled" has the compiled decoder.
    """
    with loaded(folder / "benchmark.json") as record:
        return _speeds(record.get("speeds", []), record.get("largest_batches", {}))


def _speeds(speeds: list[dict[str, Any]], largest: Mapping[str, Any]) -> Figures:
    figures: dict[str, float] = {}
    eager = next((s["method"] for s in speeds if s["method"].startswith("linear (eager")), None)
    names = {"linear": "linear-compiled", eager: "linear"}
    for speed in speeds:
        name = names.get(speed["method"], speed["method"])
        if speed["batch"] == 1:
            figures[f"{name}/1/seconds"] = number(speed, "seconds_per_image")
        # The best batch comes after one image alone; where that is the best, there is no other.
        figures[f"{name}/best/images-per-second"] = number(speed, "images_per_second")
        figures[f"{name}/best/batch"] = number(speed, "batch")
        figures[f"{name}/state-bytes"] = number(speed, "state_bytes_per_image")
        if speed["method"] in largest:
            figures[f"{name}/largest-batch"] = number(largest, speed["method"])
    return figures


def beside_cpu(folder: Path, cpu: Path, *others: Path) -> Figures:
    """A GPU's figures; beside them the seconds of this machine's CPU, by the same code.

    "largest-cpu-over-gpu" is that of MNIST and CIFAR-10, where all four experiments have run.

    Args:
        cpu: the run of the same images on the CPU.
        others: the runs of the other images, on the GPU and on the CPU.
    """
    alone, (here, there) = _cpu_over_gpu(cpu, folder), (_alone(cpu), generation(folder))
    figures = {**there, **{f"{name}/1/seconds-cpu": here[name] for name in alone}}
    other = _cpu_over_gpu(others[1], others[0])
    for method in alone.keys() & other.keys():
        figures[f"{method}/largest-cpu-over-gpu"] = max(alone[method], other[method])
    return figures


def _alone(folder: Path) -> Figures:
    """Seconds for one image by method."""
    end = "/1/seconds"
    return {n.removesuffix(end): v for n, v in generation(folder).items() if n.endswith(end)}


def _cpu_over_gpu(cpu: Path, gpu: Path) -> Figures:
    here, there = _alone(cpu), _alone(gpu)
    return {name: here[name] / there[name] for name in here if name in there}


def trainings(folder: Path) -> dict[str, Path]:
    """The run of each training by name; of runs with equal updates and in equal time the former."""
    for places in ("updates/*", "time/*", "*"):
        if files := sorted(folder.glob(f"{places}/{SUMMARY}")):
            return {file.parent.name.removeprefix("mnist-"): file.parent for file in files}
    return {}


def copied(folder: Path) -> Figures:
    """The loss on held-out sequences, and what the claims compare."""
    loss: dict[str, float] = {}
    for name, run in trainings(folder).items():
        with loaded(run / SUMMARY) as summary:
            loss[name] = number(summary, "metrics", "loss")
    figures = {f"{name}/loss": value for name, value in loss.items()}
    if linear := loss.get("linear"):
        figures |= {f"{name}/loss-over-linear": value / linear for name, value in loss.items()}
        if "softmax" in loss:
            figures["linear/loss-above-softmax"] = linear - loss["softmax"]
    return figures


def compared(folder: Path) -> Figures:
    """Bits per dimension of the attentions after equal updates and in equal time.

    Those after equal updates are of test images where there are runs for them, and of validation
    images where they are points of the runs in equal time.
    """
    figures: dict[str, float] = {}
    for name, run in trainings(folder).items():
        with loaded(run / SUMMARY) as summary:
            bits = number(summary, "metrics", "bits_per_dim")
            figures |= {f"{name}/bits": bits, f"{name}/updates": number(summary, "steps")}
            for picture in PICTURES:
                if (run / f"{picture}.png").exists():
                    figures[f"{name}/updates-drawn"] = number(summary, "steps")
                    share = bits / number(summary, "metrics", "independent_pixels_bits_per_dim")
                    figures[f"{name}/{picture}-over-independent"] = share
    with loaded(folder / RESULTS_FILE) as results:
        for name, result in results.get("attentions", {}).items():
            bits = number(result, "equal_time", "metrics", "bits_per_dim")
            figures[f"{name}/bits-equal-time"] = bits
            curve = result.get("equal_updates", {})
            if "bits_per_dim" not in curve.get("metrics", {"bits_per_dim"}):  # none but equal time
                bits = number(curve, "metrics", "validation_bits_per_dim")
                figures |= {f"{name}/bits": bits, f"{name}/updates": number(curve, "steps")}
    return figures


def spoken(folder: Path) -> Figures:
    """Phoneme error rates of the dev set in percent: greedy, with the last weights, of seed 0.

    Other seeds ("-seedN") are left out: not every model has them, and all are compared alike.
    """
    with loaded(folder / RESULTS_FILE) as results:
        return {
            f"{name}/per": 100 * number(run, "metrics", "dev_phoneme_error_rate")
            for name, run in results.get("runs", {}).items()
            if "-seed" not in name
        }


def epochs(folder: Path) -> Figures:
    """Seconds per epoch of WSJ, from batches that stand for it."""
    times, utterances = defaultdict[str, float](float), defaultdict[str, int](int)
    with loaded(folder / "benchmark.json") as record:
        for cost in record.get("epoch", []):
            if not cost.get("failure"):
                times[cost["attention"]] += median_high(cost["seconds"])
                utterances[cost["attention"]] += len(cost["lengths"])
        return {f"{x}/seconds-per-epoch": WSJ / utterances[x] * y for x, y in times.items()}


READERS: Mapping[str, Callable[..., Figures]] = {
    each.__name__: each
    for each in (flat, lengths, decoding, generation, beside_cpu, copied, compared, spoken, epochs)
}
