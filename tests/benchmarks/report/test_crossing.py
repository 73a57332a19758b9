"""The length from which on linear wins, between the lengths measured."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.measure.results import CaseResult, Description, MethodResult, Spread
from benchmarks.report.crossing import between, crossing, sections


def _result(at: int, **seconds: float) -> CaseResult:
    named = {"linear (cpu)": 1.0, "linear (torch)": 2.0, **seconds}
    case = Description(f"a/{at}", "A.", series="D=M=32, H=8", at=at, summarized=True)
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


def test_one_table_holds_all_series_and_rivals() -> None:
    results = [_result(64, lsh=5.0, softmax=0.5), _result(128, lsh=5.0, softmax=2.0)]
    other = dataclasses.replace(results[0].case, series="D=M=64, H=1")
    _, _, table = sections([*results, dataclasses.replace(results[0], case=other)])
    assert table.splitlines()[0] == "| heads | lsh | softmax |"
    assert "| D=M=32, H=8 | below 64 | ~91 |" in table
    assert "| D=M=64, H=1 | below 64 | never up to 64 |" in table


def test_no_table_without_such_cases() -> None:
    assert sections([]) == []
    result = _result(64)
    other = dataclasses.replace(result.case, summarized=False)
    assert sections([dataclasses.replace(result, case=other)]) == []
