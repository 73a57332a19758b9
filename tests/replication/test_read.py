"""Readers: figures by name from what commands write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measure.machine import Limits, Machine
from benchmarks.measure.results import MEASURED, CaseResult, Description, MethodResult, Spread
from benchmarks.report.document import Document, Run, write
from replication.experiments import read


def speed(method: str, seconds: float, batch: int = 1) -> dict[str, object]:
    return {"method": method, "batch": batch, "seconds_per_image": seconds,
            "images_per_second": 1 / seconds, "state_bytes_per_image": 8}  # fmt: skip


def write_speeds(folder: Path, *speeds: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "benchmark.json").write_text(json.dumps({"speeds": speeds}))


def test_linear_is_what_steps_in_pytorch(tmp_path: Path) -> None:
    write_speeds(
        tmp_path / "run", speed("linear", 1.0), speed("linear", 0.5, 8),
        speed("linear (eager, cpu)", 4.0), speed("linear (eager, reference)", 5.0),
    )  # fmt: skip

    figures = read.generation(tmp_path / "run")

    assert figures["linear/1/seconds"] == 4.0
    assert figures["linear-compiled/1/seconds"] == 1.0
    assert figures["linear-compiled/best/images-per-second"] == 2.0


def test_the_largest_ratio_needs_every_case(tmp_path: Path) -> None:
    def both(shape: str, cpu: float, gpu: float) -> None:
        write_speeds(tmp_path / f"generation-{shape}", speed("softmax", cpu))
        write_speeds(tmp_path / f"generation-{shape}-cuda", speed("softmax", gpu))

    both("cifar10", 1.0, 2.0)
    figures = read.beside_cpu(tmp_path / "generation-cifar10-cuda", "cifar10")
    assert figures["softmax/1/seconds-cpu"] == 1.0
    assert "softmax/largest-cpu-over-gpu" not in figures

    both("mnist", 6.0, 2.0)
    figures = read.beside_cpu(tmp_path / "generation-cifar10-cuda", "cifar10")
    assert figures["softmax/largest-cpu-over-gpu"] == 3.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_of_either_device_are_read(tmp_path: Path, device: str, machine: Machine) -> None:
    run = Run(machine, Limits(1e9, None, 1e9))
    value = MethodResult("linear (torch)", MEASURED, Spread(0.5, 0.5, 0.5), rounds=1)
    case = CaseResult(Description("lengths/512", "x", "sample", "lengths", 512), (value,))
    write(Document("lengths", device, ((run, case),)), tmp_path)

    assert read.lengths(tmp_path / "lengths")["linear/512/time"] == 0.5
