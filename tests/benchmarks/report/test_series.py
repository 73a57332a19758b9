"""Lengths come out of a table; known crossovers come out in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from benchmarks.measure.results import CaseResult, Description, MethodResult, Spread
from benchmarks.report.series import between, crossing, sections

LENGTHS = tuple(2**power for power in range(9, 17))

Curve = Callable[[int], float]


def _series(
    times: Mapping[str, Curve], peaks: Mapping[str, Curve] | None = None
) -> list[CaseResult]:
    return [_at(length, times, peaks or {}) for length in LENGTHS]


def _at(length: int, times: Mapping[str, Curve], peaks: Mapping[str, Curve]) -> CaseResult:
    """A batch of two, so that a sample has half of a call's memory."""

    def method(name: str) -> MethodResult:
        taken = times[name](length)
        peak = 2 * peaks[name](length) if name in peaks else None
        return MethodResult(name, "measured", Spread(taken, taken, taken), units=2, peak=peak)

    case = Description(f"lengths/{length}", "A.", unit="sample", series="causal", at=length)
    return CaseResult(case, tuple(method(name) for name in times))


def _power(scale: float, exponent: float) -> Curve:
    return lambda length: scale * float(length) ** exponent


def test_a_row_holds_the_time_and_the_memory_of_a_sample() -> None:
    members = _series(
        {"linear (cpu)": _power(1e-6, 1), "lsh": _power(1e-6, 2)}, {"lsh": lambda n: n * 2**20}
    )
    title, shown = sections(members)
    assert title == "## By length: causal"
    header, _, first, *_ = shown.splitlines()
    assert header == "| N | linear (cpu) | lsh | lsh / linear (cpu) |"
    assert first == "| 512 | 512 us | 262 ms, 512 MiB | - |"


def _summarized(at: int, series: str = "D=M=32, H=8", **seconds: float) -> CaseResult:
    named = {"linear (cpu)": 1.0, "linear (torch)": 2.0, **seconds}
    case = Description(f"a/{at}", "A.", series=series, at=at, summarized=True)
    methods = (
        MethodResult(name, "measured", Spread(value, value, value)) for name, value in named.items()
    )
    return CaseResult(case, tuple(methods))


def test_a_quadratic_rival_is_crossed_where_the_curves_meet() -> None:
    # The ratio (N / 180) is a power law, so that the interpolation is exact.
    assert between((128, 128 / 180), (256, 256 / 180)) == pytest.approx(180)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([(64, 1.1), (128, 2.0)], "below 64"),
        ([(64, 0.25), (128, 0.5), (256, 1.0)], "never up to 256"),
        ([(64, 0.5), (128, 128 / 180), (256, 256 / 180), (512, 3.0)], "~180"),
        ([(64, 2.0), (128, 0.5), (256, 2.0)], "~180"),  # a win that does not last is none
        ([(1_024, 0.5), (2_048, 1.4)], "~1,600"),
        ([(64, 2.0)], "below 64"),
        ([], "-"),
    ],
)
def test_the_crossover_in_words(ratios: list[tuple[int, float]], words: str) -> None:
    assert crossing(ratios) == words


def test_one_table_holds_all_summarized_series_and_rivals() -> None:
    results = [_summarized(64, lsh=5.0, softmax=0.5), _summarized(128, lsh=5.0, softmax=2.0)]
    other = _summarized(64, "D=M=64, H=1", lsh=5.0, softmax=0.5)
    _, _, table = sections([*results, other])
    assert table.splitlines()[0] == "| heads | lsh | softmax |"
    assert "| D=M=32, H=8 | below 64 | ~91 |" in table
    assert "| D=M=64, H=1 | below 64 | never up to 64 |" in table


def test_no_table_without_such_cases() -> None:
    assert sections([]) == []
