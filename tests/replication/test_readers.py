"""Readers: figures by name from what commands write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.results import MEASURED, CaseResult, MethodResult, Spread
from linattn_lab.figures import write_figures
from linattn_lab.machine import Device, Machine
from linattn_lab.store import add_record, new_record, record_file
from replication import readers


def write_json(file: Path, record: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def write_run(folder: Path, steps: int = 9, **metrics: float | None) -> None:
    """What a training leaves when it ends."""
    summary = {"seed": 0, "parameters": 1, "train_seconds": 1.0, "environment": {}}
    write_json(folder / "summary.json", summary | {"steps": steps, "metrics": metrics})


def make_speed(method: str, seconds: float, batch: int = 1) -> dict[str, object]:
    return {"method": method, "batch": batch, "seconds_per_image": seconds,
            "images_per_second": 1 / seconds, "state_bytes_per_image": 8}  # fmt: skip


def write_speeds(folder: Path, *speeds: dict[str, object], **others: object) -> None:
    record = {"speeds": speeds, "largest_batches": {}}
    write_json(folder / "benchmark.json", record | others)


def make_case(values: dict[str, float], series: str, length: int) -> CaseResult:
    methods = (
        MethodResult(name=name, status=MEASURED, value=Spread(value, value, value))
        for name, value in values.items()
    )
    return CaseResult(shows="x", series=series, at=length, methods=tuple(methods))


def write_cases(folder: Path, theme: str, device: Device, cases: dict[str, CaseResult]) -> None:
    machine = Machine(device=device, hardware="x", software="torch", backends="cpu", threads=2)
    add_record(record_file(folder, theme, device), new_record("a command", machine, cases))


@given(st.floats(0.5, 2.5), st.floats(1e-9, 1e3))
def test_a_known_exponent_is_recovered(known: float, scale: float) -> None:
    values = [(float(n), scale * n**known) for n in (512, 1_024, 4_096, 65_536)]

    assert readers.fit_exponent(values) == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_are_those_of_both_passes(tmp_path: Path, device: Device) -> None:
    times = (
        ("forward", 4_096, 2.0, 8.0), ("forward and backward", 2_048, 3.0, 30.0),
        ("forward and backward", 4_096, 6.0, 120.0),
    )  # fmt: skip
    cases = {
        f"lengths/{passes}/{length}": make_case(
            {"linear (torch)": ours, "softmax, N x N": rival}, passes, length
        )
        for passes, length, ours, rival in times
    }
    write_cases(tmp_path, "lengths", device, cases)

    figures = readers.lengths(tmp_path / "lengths")

    assert figures["linear/4096/time"] == 6.0
    assert figures["softmax, N x N/least-time-over-linear"] == 10.0
    # Of the lengths from 4,096 on there is one alone, so that all are fitted.
    assert figures["softmax, N x N/exponent"] == pytest.approx(2.0)


def test_the_last_step_is_compared_with_the_first(tmp_path: Path) -> None:
    values = {"linear (eager), first step": 2.0, "linear (eager), last step": 3.0}
    cases = {"decoding/steps/one-image": make_case(values, "", 1)}
    write_cases(tmp_path, "decoding", "cpu", cases)

    assert readers.decoding(tmp_path / "decoding") == {"linear/last-over-first": 1.5}


def test_linear_is_what_steps_in_pytorch_by_the_fastest_backend(tmp_path: Path) -> None:
    eager = "linear (eager, cpu)"
    write_speeds(
        tmp_path, make_speed("linear", 1.0), make_speed("linear", 0.5, 8), make_speed(eager, 4.0),
        make_speed(eager, 2.0, 8), make_speed("linear (eager, reference)", 5.0),
        largest_batches={eager: 10},
    )  # fmt: skip

    figures = readers.generation(tmp_path)

    assert figures["linear/1/seconds"] == 4.0
    assert figures["linear-compiled/1/seconds"] == 1.0
    assert figures["linear-compiled/best/images-per-second"] == 2.0
    # The largest batch may not be the best.
    assert (figures["linear/best/batch"], figures["linear/largest-batch"]) == (8, 10)


def test_a_gpu_is_compared_with_the_cpu_beside_it(tmp_path: Path) -> None:
    seconds = {"cifar10-cuda": 2.0, "cifar10": 1.0, "mnist-cuda": 2.0, "mnist": 6.0}
    for name, value in seconds.items():
        write_speeds(tmp_path / name, make_speed("softmax", value))

    figures = readers.generation_beside_cpu(*(tmp_path / name for name in seconds))

    assert figures["softmax/1/seconds"] == 2.0
    assert figures["softmax/1/seconds-cpu"] == 1.0
    assert figures["softmax/largest-cpu-over-gpu"] == 3.0


def test_figures_of_trainings_have_their_names(tmp_path: Path) -> None:
    for name in ("linear", "lsh-1"):
        write_run(tmp_path / "updates" / name)
        write_figures(tmp_path / "updates" / name, {"bits": 2, "updates-drawn": 9})
    write_run(tmp_path / "updates" / "softmax")
    write_figures(tmp_path, {"linear/bits": 1})

    assert readers.flat(tmp_path) == {
        "linear/bits": 1, "linear/updates-drawn": 9, "lsh-1/bits": 2, "lsh-1/updates-drawn": 9
    }  # fmt: skip


def test_epochs_are_of_the_models_whose_updates_could_be_measured(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speech/epoch"):
        readers.speech_epochs(tmp_path)
    case = make_case({"linear": 0.25}, "", 0)
    unmeasured = MethodResult(name="softmax", status="does not fit")
    case = case.model_copy(update={"methods": (*case.methods, unmeasured)})
    write_cases(tmp_path, "speech", "cpu", {"speech/epoch": case})

    assert readers.speech_epochs(tmp_path) == {"linear/seconds-per-epoch": 9_354.0}


def test_a_file_without_a_key_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "benchmark.json", {"speeds": [{"method": "linear"}]})

    with pytest.raises(ValueError, match=r"benchmark\.json: expected .*'batch'"):
        readers.generation(tmp_path)


@given(st.lists(st.sampled_from(["train", "eval"]), max_size=300))
def test_curves_keep_the_ends_of_each_split(splits: list[str]) -> None:
    lines: list[dict[str, Any]] = [{"split": x, "step": n} for n, x in enumerate(splits)]

    thinned = readers.thin_metrics(lines)

    for split in set(splits):
        steps, kept = (
            [x["step"] for x in each if x["split"] == split] for each in (lines, thinned)
        )
        assert len(kept) == min(len(steps), readers.CURVE_POINTS)
        assert kept == sorted(kept)
        assert (kept[0], kept[-1]) == (steps[0], steps[-1])
