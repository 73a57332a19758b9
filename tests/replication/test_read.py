"""Readers: figures by name from what commands write."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.measure.machine import Limits, Machine
from benchmarks.measure.results import MEASURED, CaseResult, Description, MethodResult, Spread
from benchmarks.report.document import Document, Run, write
from replication import read


def speed(method: str, seconds: float, batch: int = 1) -> dict[str, object]:
    return {"method": method, "batch": batch, "seconds_per_image": seconds,
            "images_per_second": 1 / seconds, "state_bytes_per_image": 8}  # fmt: skip


def write_speeds(folder: Path, *speeds: dict[str, object], **others: object) -> None:
    folder.mkdir()
    (folder / "benchmark.json").write_text(json.dumps({"speeds": speeds, **others}))


@pytest.mark.parametrize("known", [0.0, 1.0, 1.2, 2.0])
def test_a_known_exponent_is_recovered_from_noise(known: float) -> None:
    noise, lengths = random.Random(0), [2**power for power in range(9, 17)]
    points = [(n, 3e-6 * n**known * noise.uniform(0.97, 1.03)) for n in lengths]
    assert read.exponent(points) == pytest.approx(known, abs=0.02)


def test_linear_is_what_steps_in_pytorch(tmp_path: Path) -> None:
    write_speeds(
        tmp_path / "run", speed("linear", 1.0), speed("linear", 0.5, 8),
        speed("linear (eager, cpu)", 4.0), speed("linear (eager, reference)", 5.0),
    )  # fmt: skip

    figures = read.generation(tmp_path / "run")

    assert figures["linear/1/seconds"] == 4.0
    assert figures["linear-compiled/1/seconds"] == 1.0
    assert figures["linear-compiled/best/images-per-second"] == 2.0


def test_the_largest_batch_may_not_be_the_best(tmp_path: Path) -> None:
    speeds = speed("linear (eager, cpu)", 1.0), speed("linear (eager, cpu)", 0.5, 8)
    write_speeds(tmp_path / "run", *speeds, largest_batches={"linear (eager, cpu)": 10})

    figures = read.generation(tmp_path / "run")

    assert (figures["linear/best/batch"], figures["linear/largest-batch"]) == (8, 10)


def test_the_largest_ratio_needs_every_case(tmp_path: Path) -> None:
    def both(shape: str, cpu: float, gpu: float) -> None:
        write_speeds(tmp_path / f"generation-{shape}", speed("softmax", cpu))
        write_speeds(tmp_path / f"generation-{shape}-cuda", speed("softmax", gpu))

    both("cifar10", 1.0, 2.0)
    names = ("cifar10-cuda", "cifar10", "mnist-cuda", "mnist")
    folders = [tmp_path / f"generation-{name}" for name in names]
    figures = read.beside_cpu(*folders)
    assert figures["softmax/1/seconds-cpu"] == 1.0
    assert "softmax/largest-cpu-over-gpu" not in figures

    both("mnist", 6.0, 2.0)
    assert read.beside_cpu(*folders)["softmax/largest-cpu-over-gpu"] == 3.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_of_either_device_are_read(tmp_path: Path, device: str, machine: Machine) -> None:
    run = Run(machine, Limits(1e9, None, 1e9))
    value = MethodResult("linear (torch)", MEASURED, Spread(0.5, 0.5, 0.5), rounds=1)
    series = "causal, forward and backward"
    case = CaseResult(Description("lengths/512", "x", "sample", series, 512), (value,))
    write(Document("lengths", device, ((run, case),)), tmp_path)

    assert read.lengths(tmp_path / "lengths")["linear/512/time"] == 0.5


def test_both_passes_are_compared_with_both(tmp_path: Path, machine: Machine) -> None:
    def case(passes: str, length: int, ours: float, rival: float) -> CaseResult:
        methods = (
            MethodResult(name, MEASURED, Spread(value, value, value), rounds=1)
            for name, value in (("linear (torch)", ours), ("softmax, N x N", rival))
        )
        name = f"lengths/{passes}/{length}"
        return CaseResult(Description(name, "x", "sample", passes, length), tuple(methods))

    run = Run(machine, Limits(1e9, None, 1e9))
    cases = [
        case("forward", 2_048, 1.0, 2.0), case("forward", 4_096, 2.0, 8.0),
        case("forward and backward", 2_048, 3.0, 30.0),
        case("forward and backward", 4_096, 6.0, 120.0),
    ]  # fmt: skip
    document = Document("lengths", "cuda", tuple((run, each) for each in cases))
    write(document, tmp_path)

    figures = read.lengths(tmp_path / "lengths")

    assert figures["softmax, N x N/least-time-over-linear"] == 10.0
    assert figures["linear/4096/time"] == 6.0
    # Of the lengths from 4,096 on there is one alone, so that all are fitted.
    assert figures["softmax, N x N/exponent"] == pytest.approx(2.0)


def write_json(file: Path, record: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def test_losses_are_compared_with_linear_and_softmax(tmp_path: Path) -> None:
    for name, loss in (("linear", 0.5), ("softmax", 0.25), ("lsh-4", 2.0)):
        write_json(tmp_path / name / "summary.json", {"metrics": {"loss": loss}})

    figures = read.copied(tmp_path)

    assert figures["linear/loss-above-softmax"] == 0.25
    assert figures["lsh-4/loss-over-linear"] == 4.0
    assert read.copied(tmp_path / "absent") == {}


def test_a_picture_counts_where_it_was_drawn(tmp_path: Path) -> None:
    metrics = {"bits_per_dim": 1.0, "independent_pixels_bits_per_dim": 2.0}
    for name in ("linear", "lsh-1"):
        write_json(tmp_path / "updates" / name / "summary.json", {"steps": 9, "metrics": metrics})
    (tmp_path / "updates" / "lsh-1" / "samples.png").touch()
    shorter = {"equal_time": {"metrics": {"bits_per_dim": 1.5}}}
    write_json(tmp_path / "results.json", {"attentions": {"lsh-1": shorter}})

    figures = read.compared(tmp_path)

    assert figures["linear/bits"] == figures["lsh-1/bits"] == 1.0
    assert figures["lsh-1/bits-equal-time"] == 1.5
    assert [name for name in figures if "independent" in name] == ["lsh-1/samples-over-independent"]


def test_error_rates_are_of_seed_0_and_epochs_sums_of_batches(tmp_path: Path) -> None:
    rates = {"linear": 0.1, "linear-seed1": 0.3, "lstm": 0.5}
    runs = {name: {"metrics": {"dev_phoneme_error_rate": x}} for name, x in rates.items()}
    write_json(tmp_path / "results.json", {"runs": runs})
    batches = [
        {"attention": "linear", "seconds": [3.0, 1.0, 2.0], "lengths": [9, 9]},
        {"attention": "linear", "seconds": [4.0], "lengths": [9]},
        {"attention": "softmax", "failure": "does not fit"},
    ]
    write_json(tmp_path / "benchmark.json", {"epoch": batches})

    assert read.spoken(tmp_path) == {"linear/per": 10.0, "lstm/per": 50.0}
    assert read.epochs(tmp_path) == {"linear/seconds-per-epoch": 37_416 / 3 * 6.0}
