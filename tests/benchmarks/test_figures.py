"""Figures by name from the results of cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import fit_exponent, read_figures
from benchmarks.results import MEASURED, CaseResult, MethodResult, Spread
from linattn_lab.machine import Device, Machine
from linattn_lab.store import add_record, new_record, record_file


def make_result(
    values: dict[str, float], series: str = "", length: int = 1, units: float = 1, **figures: float
) -> CaseResult:
    methods = (
        MethodResult(
            name=name, status=MEASURED, value=Spread(value, value, value), units=units,
            figures=figures,
        )
        for name, value in values.items()
    )  # fmt: skip
    lost = MethodResult(name="lost", status="does not fit")
    return CaseResult(shows="x", series=series, at=length, methods=(*methods, lost))


def write_results(folder: Path, cases: dict[str, CaseResult], device: Device = "cpu") -> None:
    hardware = "NVIDIA H100, 132 multiprocessors" if device == "cuda" else "x"
    machine = Machine(device=device, hardware=hardware, software="x", backends="cpu", threads=2)
    for name, case in cases.items():
        file = record_file(folder, name.partition("/")[0], machine.place)
        add_record(file, new_record("a command", "abc1234", machine, {name: case}))


@given(st.floats(0.5, 2.5), st.floats(1e-9, 1e3))
def test_a_known_exponent_is_recovered(known: float, scale: float) -> None:
    values = [(float(n), scale * n**known) for n in (512, 1_024, 4_096, 65_536)]
    assert fit_exponent(values) == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_are_those_of_both_passes(tmp_path: Path, device: Device) -> None:
    times = (
        ("forward", 4_096, 2.0, 8.0), ("forward and backward", 2_048, 3.0, 30.0),
        ("forward and backward", 4_096, 6.0, 120.0),
    )  # fmt: skip
    cases = {
        f"lengths/{passes}/{n}": make_result({"linear (torch)": x, "softmax, N x N": y}, passes, n)
        for passes, n, x, y in times
    }
    write_results(tmp_path, cases, device)
    figures = read_figures(tmp_path)
    assert figures["linear/4096/time"] == 6.0
    assert figures["softmax, N x N/least-time-over-linear"] == 10.0
    # Of the lengths from 4,096 on there is one alone, so that all are fitted.
    assert figures["softmax, N x N/exponent"] == pytest.approx(2.0)


def test_images_have_one_alone_and_the_best_batch(tmp_path: Path) -> None:
    best = make_result({"linear": 0.5}, units=8, **{"largest-batch": 16})
    cases = {
        "images/mnist/one-image": make_result({"linear": 4.0, "softmax": 9.0}),
        "images/mnist/best-batch": best, "speedup/64": make_result({"linear, batch 8": 0.25}),
    }  # fmt: skip
    write_results(tmp_path, cases)
    assert read_figures(tmp_path) == {
        "linear/1/seconds": 4.0, "softmax/1/seconds": 9.0, "linear/best/images-per-second": 2.0,
        "linear/best/batch": 8, "linear/largest-batch": 16, "linear/64/8/seconds": 0.25,
    }  # fmt: skip
