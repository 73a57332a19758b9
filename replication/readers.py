"""From what the commands of an experiment left in its folder to figures, curves and pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmarks.figures
from linattn_core.errors import expected
from linattn_lab.figures import FILE, read_figures
from linattn_lab.seeds import base_name
from linattn_models.training import RunFolder
from replication.claims import Figures

BEST = "best/images-per-second"
PICTURES = ("samples", "completions")
CURVE_POINTS = 50  # that are kept of each split of a training


def read_run(folder: Path) -> Figures:
    """The figures of a run: those of its trainings, under their names, and its own."""
    own = read_figures(folder) if (folder / FILE).exists() else {}
    trained = {
        f"{name}/{figure}": value
        for name, run in find_trainings(folder).items()
        if (run.path / FILE).exists()
        for figure, value in read_figures(run.path).items()
    }
    figures = {**trained, **own, **benchmarks.figures.read_figures(folder)}
    if not figures:
        raise ValueError(expected(str(folder), "figures", "none"))
    return figures


def trained_seconds(folder: Path) -> float:
    """The seconds of all updates in a folder, also of those before an interruption."""
    return float(sum(summary["train_seconds"] for summary in read_summaries(folder)))


def trained_commits(folder: Path) -> str:
    """The commits of all trainings in a folder, which earlier commands may have made."""
    commits = (summary["environment"]["commit"] for summary in read_summaries(folder))
    return ", ".join(sorted({(each or "unknown")[:7] for each in commits}))


def read_summaries(folder: Path) -> list[dict[str, Any]]:
    """The summaries of all trainings in a folder."""
    return [RunFolder(file.parent).summary() for file in sorted(folder.rglob("summary.json"))]


def read_beside_cpu(folder: Path, cpu: Path, *others: Path) -> Figures:
    """A GPU's figures of images; beside them the seconds of this machine's CPU.

    Args:
        cpu: the run of the same images on the CPU.
        others: the runs of the other images, on the GPU and on the CPU; with them,
            "largest-cpu-over-gpu" is the larger ratio of MNIST and CIFAR-10.
    """
    here, figures = read_run(cpu), {**read_run(folder)}
    figures |= {f"{name}-cpu": here[name] for name in here if name.endswith("/1/seconds")}
    if others:
        ratios, other_ratios = cpu_over_gpu(cpu, folder), cpu_over_gpu(others[1], others[0])
        for method in ratios.keys() & other_ratios.keys():
            largest = max(ratios[method], other_ratios[method])
            figures[f"{method}/largest-cpu-over-gpu"] = largest
    return figures


def cpu_over_gpu(cpu: Path, gpu: Path) -> dict[str, float]:
    """By method, the seconds for one image on the CPU over those on the GPU."""
    end, here, there = "/1/seconds", read_run(cpu), read_run(gpu)
    names = (name for name in here if name.endswith(end) and name in there)
    return {name.removesuffix(end): here[name] / there[name] for name in names}


def find_trainings(folder: Path) -> dict[str, RunFolder]:
    """The run of each training by its folder; of several seeds the first one's."""
    return {name: run for name, run in find_runs(folder).items() if name == base_name(name)}


def find_runs(folder: Path) -> dict[str, RunFolder]:
    """The run of each seed of each training; of equal updates and equal time the former."""
    for places in ("updates/*", "time/*", "*", "."):
        if files := sorted(folder.glob(f"{places}/summary.json")):
            return {file.parent.name: RunFolder(file.parent) for file in files}
    return {}


def read_curves(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The metrics of each run by name, at most `CURVE_POINTS` lines of a split."""
    return {name: thin_metrics(run.metrics()) for name, run in find_runs(folder).items()}


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
