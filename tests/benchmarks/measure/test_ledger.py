"""What was measured at the lengths before decides whether the next is tried."""

from __future__ import annotations

import pytest

from benchmarks.measure import ledger as ledgers
from benchmarks.measure.cases import NotMeasured, Settings
from benchmarks.measure.ledger import GIB, Ledger, extrapolated
from benchmarks.measure.results import CaseResult, Description, MethodResult, Spread


@pytest.fixture(autouse=True)
def _ten_gib_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "available_memory", lambda device: 10.0 * GIB)


def _result(
    length: int, *, seconds: float = 1.0, gib: float | None = None, units: float = 1
) -> CaseResult:
    peak = None if gib is None else gib * GIB
    value = Spread(seconds / units, seconds / units, seconds / units)
    method = MethodResult("a", "measured", value, 1, units, peak=peak)
    return CaseResult(Description(f"a/{length}", "A series.", at=length), (method,))


def _ledger(*earlier: CaseResult, quick: bool = False, **limits: object) -> Ledger:
    return Ledger(earlier, Settings(quick=quick), **limits)  # type: ignore[arg-type]


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


def test_a_method_that_would_not_fit_is_refused() -> None:
    ledger = _ledger(_result(100, gib=0.5), _result(200, gib=2), _result(400, gib=8))
    with pytest.raises(NotMeasured, match="does not fit: needs about 32 GiB, 10 GiB are free"):
        ledger.require("a", 800, 1)
    ledger.require("another", 800, 1)


def test_memory_that_is_known_to_grow_faster_is_expected_to() -> None:
    with pytest.raises(NotMeasured, match="needs about 12 GiB"):
        _ledger(_result(100, gib=3), memory_growth={"a": 2}).require("a", 200, 1)
    _ledger(_result(100, gib=3)).require("a", 200, 1)


def test_a_batch_that_shrinks_with_the_length_is_counted() -> None:
    ledger = _ledger(_result(100, gib=6, units=4), _result(200, gib=6, units=2))
    ledger.require("a", 400, 1)
    with pytest.raises(NotMeasured, match="needs about 12 GiB"):
        ledger.require("a", 400, 2)


def test_a_call_that_would_take_too_long_is_refused() -> None:
    ledger = _ledger(_result(100, seconds=4), _result(200, seconds=16), most_seconds=30)
    with pytest.raises(NotMeasured, match="not measured: about 64 s a call"):
        ledger.require("a", 400, 1)


def test_what_was_never_measured_is_held_to_its_least() -> None:
    with pytest.raises(NotMeasured, match="needs about 9 GiB"):
        _ledger().require("a", 100, 1, least_bytes=9 * GIB)
    _ledger().require("a", 100, 1, least_bytes=7 * GIB)


def test_a_quick_run_is_not_held_back() -> None:
    _ledger(quick=True).require("a", 100, 1, least_bytes=1e15)
