"""What was measured at the lengths before decides whether the next is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from benchmarks.ledger import GIB, Ledger, extrapolated
from benchmarks.machine import Limits
from benchmarks.registry import Absent, Case, Method, NotMeasured, Settings
from benchmarks.runner import run_case

FREE = 10.0 * GIB


def _ledger(**fields: object) -> Ledger:
    return Ledger(lambda device: FREE, **fields)  # type: ignore[arg-type]


def _series(
    ledger: Ledger,
    length: int,
    *,
    seconds: float = 1.0,
    peak: float | None = None,
    units: float = 1,
    check: Callable[[], str | None] = lambda: None,
) -> Case:
    made = Method(
        "a", check=check, measure=lambda: seconds, units=units,
        peak=None if peak is None else lambda: peak,
    )  # fmt: skip
    guarded = ledger.guarded(made, length, Settings())
    return Case(
        f"a/{length}", "A series.", lambda _: [guarded], rounds=(1, 1), at=length, done=ledger.note
    )


def _status(case: Case) -> str:
    limits = Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8)
    return run_case(case, Settings(), limits=limits).method("a").status


@pytest.mark.parametrize(
    ("points", "least", "expected"),
    [
        ([], 1, 0),
        ([(100, 7.0)], 1, 28),
        ([(100, 7.0)], 2, 112),
        ([(100, 2.0), (200, 8.0)], 1, 32),  # quadratic so far
        ([(100, 8.0), (200, 8.5)], 1, 17),  # less than linear: an overhead still
        ([(100, 0.0), (200, 3.0)], 1, 6),  # what was too little to be seen has no growth
        ([(100, 1.0), (200, 1e6)], 1, 8e6),  # a disturbance
        ([(50, 1.0), (100, 9.0), (200, 18.0)], 1, 36),  # the last two alone
    ],
)
def test_the_last_figure_grows_as_it_grew(
    points: list[tuple[int, float]], least: float, expected: float
) -> None:
    assert extrapolated(points, 400, least) == pytest.approx(expected)


def test_a_method_that_would_not_fit_is_a_row_and_is_not_called() -> None:
    def check() -> str | None:
        raise AssertionError("called although it does not fit")

    ledger = _ledger()
    assert _status(_series(ledger, 100, peak=0.5 * GIB)) == "measured"
    assert _status(_series(ledger, 200, peak=2.0 * GIB)) == "measured"
    assert _status(_series(ledger, 400, peak=8.0 * GIB)) == "measured"
    sentence = "does not fit: needs about 32 GiB, 10 GiB are free"
    assert _status(_series(ledger, 800, check=check)) == sentence
    # Nothing was learned from the refusal, so that what is longer still is refused too.
    sentence = "does not fit: needs about 128 GiB, 10 GiB are free"
    assert _status(_series(ledger, 1_600, check=check)) == sentence


def test_memory_that_is_known_to_grow_faster_is_expected_to() -> None:
    ledger = _ledger(memory_growth={"a": 2})
    _status(_series(ledger, 100, peak=3.0 * GIB))
    assert _status(_series(ledger, 200)).startswith("does not fit: needs about 12 GiB")
    linear = _ledger()
    _status(_series(linear, 100, peak=3.0 * GIB))
    assert _status(_series(linear, 200)) == "measured"


def test_a_batch_that_shrinks_with_the_length_is_counted() -> None:
    ledger = _ledger(most_seconds=30.0)
    assert _status(_series(ledger, 100, peak=6.0 * GIB, seconds=20.0, units=4)) == "measured"
    assert _status(_series(ledger, 200, peak=6.0 * GIB, seconds=20.0, units=2)) == "measured"
    assert _status(_series(ledger, 400, units=1)) == "measured"
    assert _status(_series(ledger, 400, units=2)).startswith("does not fit: needs about 12 GiB")


def test_a_call_that_would_take_too_long_is_not_made() -> None:
    ledger = _ledger(most_seconds=30.0)
    _status(_series(ledger, 100, seconds=4.0))
    _status(_series(ledger, 200, seconds=16.0))
    assert _status(_series(ledger, 400)) == "not measured: about 64 s a call"


def test_what_was_never_measured_is_held_to_its_least() -> None:
    with pytest.raises(NotMeasured, match="needs about 9 GiB"):
        _ledger().require("a", 100, 1, least_bytes=9.0 * GIB)
    _ledger().require("a", 100, 1, least_bytes=7.0 * GIB)


def test_memory_that_the_system_refuses_is_a_row() -> None:
    def check() -> str | None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    assert _status(_series(_ledger(), 100, check=check)).startswith("does not fit: the system")


def test_another_error_is_not_taken_for_it() -> None:
    def check() -> str | None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        _status(_series(_ledger(), 100, check=check))


def test_a_quick_run_is_not_held_back() -> None:
    made = Method("a", check=lambda: None, measure=lambda: 1.0)
    assert _ledger().guarded(made, 100, Settings(quick=True), least_bytes=1e15) is made


def test_an_absent_method_stays_so() -> None:
    absent = Absent("a", "not installed")
    assert _ledger().guarded(absent, 100, Settings()) is absent
    case = dataclasses.replace(_series(_ledger(), 100), setup=lambda _: [absent])
    assert _status(case) == "not installed"
