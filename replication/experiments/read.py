"""Readers: from what a command wrote to figures by name; no figures where a file is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.measure.results import CaseResult
from benchmarks.report.document import read
from benchmarks.report.series import (
    FEWEST_POINTS,
    FIT_FROM,
    Points,
    exponent,
    held,
    points,
    seconds,
)
from replication.claims.claim import Figures

LINEAR = ("linear (cpu)", "linear (cuda)", "linear (torch)")
RIVALS = ("softmax, N x N", "softmax SDPA", "lsh-1", "lsh-4", "lsh-8")


def loaded(file: Path) -> Any:
    """The JSON of a file; {} where there is none."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def flat(folder: Path) -> Figures:
    """The figures of a process of our own, which writes them by name."""
    return dict(loaded(folder / "figures.json").get("figures", {}))


def lengths(folder: Path) -> Figures:
    """Figure 1: seconds and bytes a sample by length, exponents, and least ratios to linear."""
    members = _results(folder)
    names = {method.name for member in members for method in member.methods}
    linear = next((name for name in LINEAR if name in names), None)
    figures: dict[str, float] = {}
    ours: dict[str, dict[int, float]] = {}
    for name in [*([linear] if linear else []), *(rival for rival in RIVALS if rival in names)]:
        shown = "linear" if name == linear else name
        for what, quantity, growth in (
            ("time", seconds, "exponent"),
            ("memory", held, "memory-exponent"),
        ):
            known = points(members, name, quantity)
            figures |= {f"{shown}/{at}/{what}": value for at, value in known}
            figures |= {f"{shown}/{growth}": slope for slope in _slope(known)}
            if name == linear:
                ours[what] = dict(known)
            elif ratios := [value / ours[what][at] for at, value in known if at in ours[what]]:
                figures[f"{shown}/least-{what}-over-linear"] = min(ratios)
    return figures


def _results(folder: Path) -> list[CaseResult]:
    """Of a run on either device; where both are, as in docs/results, of the CPU."""
    documents = (read(folder.parent, folder.name, device).results for device in ("cpu", "cuda"))
    return next(filter(None, documents), [])


def _slope(known: Points) -> list[float]:
    # A short sequence's time is that of the call; a quick run has none but short ones.
    long = [point for point in known if point[0] >= FIT_FROM] or list(known)
    return [exponent(long)] if len(long) >= FEWEST_POINTS else []


def decoding(folder: Path) -> Figures:
    """The time of the last step over that of the first, for one image."""
    cases: dict[str, CaseResult] = {result.case.name: result for result in _results(folder)}
    case = cases.get("decoding/steps/one-image")
    values = {} if case is None else {m.name: m.seconds for m in case.methods}
    figures: dict[str, float] = {}
    for method, shown in (("linear (eager)", "linear"), ("stateful softmax", "stateful-softmax")):
        first = values.get(f"{method}, first step")
        last = next(
            (v for n, v in values.items() if n.startswith(method) and "first" not in n), None
        )
        if first and last:
            figures[f"{shown}/last-over-first"] = last / first
    return figures


def generation(folder: Path) -> Figures:
    """Of each method: seconds for an image alone, images per second and batch at the best batch.

    "linear" has its layers in PyTorch, step by step, and the fastest backend of the operator;
    "linear-compiled" has the compiled decoder.
    """
    figures: dict[str, float] = {}
    speeds = loaded(folder / "benchmark.json").get("speeds", [])
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
    return figures


def beside_cpu(folder: Path, shape: str) -> Figures:
    """A GPU's figures; beside them the seconds of this machine's CPU, by the same code.

    "largest-cpu-over-gpu" is that of MNIST and CIFAR-10, where all four experiments have run.
    """
    figures = dict(generation(folder))
    cpu = generation(folder.parent / f"generation-{shape}")
    alone = [name for name in figures if name.endswith("/1/seconds") and name in cpu]
    figures |= {f"{name}-cpu": cpu[name] for name in alone}
    ratios = [_cpu_over_gpu(folder.parent, each) for each in ("mnist", "cifar10")]
    for method in ratios[0].keys() & ratios[1].keys():
        figures[f"{method}/largest-cpu-over-gpu"] = max(each[method] for each in ratios)
    return figures


def _cpu_over_gpu(runs: Path, shape: str) -> Figures:
    """Of each method that ran on both, the seconds for one image."""
    cpu, gpu = (generation(runs / f"generation-{shape}{end}") for end in ("", "-cuda"))
    names = (name for name in cpu if name.endswith("/1/seconds") and name in gpu)
    return {name.removesuffix("/1/seconds"): cpu[name] / gpu[name] for name in names}


def copy_task(folder: Path) -> Figures:
    """The loss on held-out sequences, and what the claims compare."""
    summaries = {
        attention: loaded(folder / attention / "summary.json")
        for attention in ("linear", "softmax", "lsh-1", "lsh-4")
    }
    loss = {name: each["metrics"]["loss"] for name, each in summaries.items() if each}
    figures = {f"{name}/loss": value for name, value in loss.items()}
    if "linear" in loss:
        figures |= {
            f"{name}/loss-over-linear": value / loss["linear"] for name, value in loss.items()
        }
    if {"linear", "softmax"} <= loss.keys():
        figures["linear/loss-above-softmax"] = loss["linear"] - loss["softmax"]
    return figures


def images(folder: Path) -> Figures:
    """Bits per dimension after equal updates and equal time, and of the pictures' models."""
    figures: dict[str, float] = {}
    for name, result in loaded(folder / "results.json").get("attentions", {}).items():
        metrics = result["equal_updates"]["metrics"]
        figures[f"{name}/bits"] = metrics["bits_per_dim"]
        figures[f"{name}/bits-equal-time"] = result["equal_time"]["metrics"]["bits_per_dim"]
        figures[f"{name}/seconds-an-update"] = result["seconds_an_update"]
        figures["updates"] = result["equal_updates"]["steps"]
        figures["independent/bits"] = metrics["independent_pixels_bits_per_dim"]
    return figures


def longer(folder: Path) -> Figures:
    """Linear and softmax attention after the same training, and what their models drew."""
    figures: dict[str, float] = {}
    for name in ("linear", "softmax"):
        places = (folder / f"mnist-{name}", folder / "updates" / name)
        run = next((place for place in places if (place / "summary.json").exists()), None)
        if run is None:
            continue
        summary = loaded(run / "summary.json")
        metrics = summary["metrics"]
        figures[f"{name}/bits"] = metrics["bits_per_dim"]
        figures[f"{name}/updates"] = summary["steps"]
        share = metrics["bits_per_dim"] / metrics["independent_pixels_bits_per_dim"]
        figures |= {
            f"{name}/{picture}-over-independent": share
            for picture in ("samples", "completions")
            if (run / f"{picture}.png").exists()
        }
    return figures


def speech(folder: Path) -> Figures:
    """Phoneme error rates of the dev set in percent; of several seeds, their mean."""
    rates: dict[str, list[float]] = {}
    for name, run in loaded(folder / "results.json").get("runs", {}).items():
        error = 100 * run["metrics"]["dev_phoneme_error_rate"]
        rates.setdefault(name.partition("-seed")[0], []).append(error)
    return {f"{name}/per": sum(each) / len(each) for name, each in rates.items()}


def speech_epochs(folder: Path) -> Figures:
    """Seconds an epoch of WSJ, from batches that stand for it."""
    times: dict[str, list[float]] = {}
    utterances: dict[str, int] = {}
    for cost in loaded(folder / "benchmark.json").get("epoch", []):
        if not cost.get("failure"):
            name = cost["attention"]
            times.setdefault(name, []).append(sorted(cost["seconds"])[len(cost["seconds"]) // 2])
            utterances[name] = utterances.get(name, 0) + len(cost["lengths"])
    return {
        f"{name}/seconds-an-epoch": 37_416 / utterances[name] * sum(each)
        for name, each in times.items()
    }
