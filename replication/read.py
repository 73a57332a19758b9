"""Readers: from what a command wrote to figures by name; no figures where a file is missing.

A reader takes the folder of a run, and those of the runs that its experiment stands beside.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import linear_regression, median_high
from typing import Any

from benchmarks.measure.results import CaseResult
from benchmarks.report.document import read
from benchmarks.report.series import Points, held, points, seconds
from replication.claims import Figures

LINEAR = ("linear (cpu)", "linear (cuda)", "linear (torch)")
RIVALS = ("softmax, N x N", "softmax SDPA", "lsh-1", "lsh-4", "lsh-8")
QUANTITIES = (("time", seconds, "exponent"), ("memory", held, "memory-exponent"))
FIT_FROM, FEWEST_POINTS = 4_096, 2  # lengths of which an exponent is fitted
WSJ = 37_416  # utterances of an epoch


def loaded(file: Path) -> Any:
    """The JSON of a file; {} where there is none."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def flat(folder: Path) -> Figures:
    """The figures of a process of our own, which writes them by name."""
    return dict(loaded(folder / "figures.json"))


def _results(folder: Path) -> list[CaseResult]:
    """Of a run on either device; where both are, as in docs/results, of the CPU."""
    documents = (read(folder.parent, folder.name, device).results for device in ("cpu", "cuda"))
    return next(filter(None, documents), [])


def lengths(folder: Path) -> Figures:
    """Figure 1: seconds and bytes per sample by length, exponents, and least ratios to linear."""
    members, figures = _results(folder), dict[str, float]()
    names = {method.name for member in members for method in member.methods}
    linear = [name for name in LINEAR if name in names][:1]
    for what, quantity, growth in QUANTITIES:
        ours: dict[int, float] = {}
        for name in [*linear, *(rival for rival in RIVALS if rival in names)]:
            known, shown = points(members, name, quantity), "linear" if name in linear else name
            figures |= {f"{shown}/{at}/{what}": value for at, value in known}
            # A short sequence's time is that of the call; a quick run has none but short ones.
            long = [point for point in known if point[0] >= FIT_FROM] or list(known)
            if len(long) >= FEWEST_POINTS:
                figures[f"{shown}/{growth}"] = exponent(long)
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
    cases = {result.case.name: result for result in _results(folder)}
    case = cases.get("decoding/steps/one-image")
    values = {} if case is None else {m.name: m.seconds for m in case.methods}
    figures: dict[str, float] = {}
    for method, shown in (("linear (eager)", "linear"), ("stateful softmax", "stateful-softmax")):
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
    figures: dict[str, float] = {}
    document = loaded(folder / "benchmark.json")
    speeds, largest = document.get("speeds", []), document.get("largest_batches", {})
    eager = next((s["method"] for s in speeds if s["method"].startswith("linear (eager")), None)
    names = {"linear": "linear-compiled", eager: "linear"}
    for speed in speeds:
        name = names.get(speed["method"], speed["method"])
        if speed["batch"] == 1:
            figures[f"{name}/1/seconds"] = speed["seconds_per_image"]
        # The best batch comes after one image alone; where that is the best, there is no other.
        figures[f"{name}/best/images-per-second"] = speed["images_per_second"]
        figures[f"{name}/best/batch"] = speed["batch"]
        figures[f"{name}/state-bytes"] = speed["state_bytes_per_image"]
        if speed["method"] in largest:
            figures[f"{name}/largest-batch"] = largest[speed["method"]]
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


def copied(folder: Path) -> Figures:
    """The loss on held-out sequences, and what the claims compare."""
    files = sorted(folder.glob("*/summary.json"))
    loss = {file.parent.name: loaded(file)["metrics"]["loss"] for file in files}
    figures = {f"{name}/loss": value for name, value in loss.items()}
    if linear := loss.get("linear"):
        figures |= {f"{name}/loss-over-linear": value / linear for name, value in loss.items()}
        if "softmax" in loss:
            figures["linear/loss-above-softmax"] = linear - loss["softmax"]
    return figures


def compared(folder: Path) -> Figures:
    """Bits per dimension of the attentions after the same training, and of those that drew."""
    figures: dict[str, float] = {}
    for file in sorted(
        [*folder.glob("updates/*/summary.json"), *folder.glob("mnist-*/summary.json")]
    ):
        summary, name = loaded(file), file.parent.name.removeprefix("mnist-")
        bits = summary["metrics"]["bits_per_dim"]
        figures |= {f"{name}/bits": bits, f"{name}/updates": summary["steps"]}
        for picture in ("samples", "completions"):
            if file.with_name(f"{picture}.png").exists():
                share = bits / summary["metrics"]["independent_pixels_bits_per_dim"]
                figures[f"{name}/{picture}-over-independent"] = share
    for name, result in loaded(folder / "results.json").get("attentions", {}).items():
        figures[f"{name}/bits-equal-time"] = result["equal_time"]["metrics"]["bits_per_dim"]
    return figures


def spoken(folder: Path) -> Figures:
    """Phoneme error rates of the dev set in percent: greedy, with the last weights, of seed 0.

    Other seeds ("-seedN") are left out: not every model has them, and all are compared alike.
    """
    return {
        f"{name}/per": 100 * run["metrics"]["dev_phoneme_error_rate"]
        for name, run in loaded(folder / "results.json").get("runs", {}).items()
        if "-seed" not in name
    }


def epochs(folder: Path) -> Figures:
    """Seconds per epoch of WSJ, from batches that stand for it."""
    times, utterances = defaultdict[str, float](float), defaultdict[str, int](int)
    for cost in loaded(folder / "benchmark.json").get("epoch", []):
        if not cost.get("failure"):
            times[cost["attention"]] += median_high(cost["seconds"])
            utterances[cost["attention"]] += len(cost["lengths"])
    return {f"{x}/seconds-per-epoch": WSJ / utterances[x] * time for x, time in times.items()}


READERS: Mapping[str, Callable[..., Figures]] = {
    each.__name__: each
    for each in (flat, lengths, decoding, generation, beside_cpu, copied, compared, spoken, epochs)
}
