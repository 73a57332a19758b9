"""The length from which on linear wins, between the lengths measured; who is out of the race."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from benchmarks.crossing import Race, between, crossing, sections
from benchmarks.machine import Limits, describe_machine
from benchmarks.registry import Case
from benchmarks.report import Report, to_markdown
from benchmarks.runner import CaseResult, MethodResult
from benchmarks.timer import Spread

LIMITS = Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8)


def _result(at: int, **seconds: float) -> CaseResult:
    named = {"linear (cpu)": 1.0, "linear (torch)": 2.0, **seconds}
    case = Case("a/case", "A.", lambda _: [], series="D=M=32, H=8", at=at, summarized=True)
    methods = [
        MethodResult(name, "measured", (value,), value=Spread(value, value, value))
        for name, value in named.items()
    ]
    return CaseResult(case, tuple(methods), ())


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
    results = [
        _result(64, lsh=5.0, softmax=0.5),
        _result(128, lsh=5.0, softmax=2.0),
    ]
    others = [
        dataclasses.replace(each, case=dataclasses.replace(each.case, series="D=M=64, H=1"))
        for each in results[:1]
    ]
    _, _, table = sections([*results, *others])
    assert table.splitlines()[0] == "| heads | lsh | softmax |"
    assert "| D=M=32, H=8 | below 64 | ~91 |" in table
    assert "| D=M=64, H=1 | below 64 | never up to 64 |" in table


def test_no_table_without_such_cases() -> None:
    assert sections([]) == []
    result = _result(64)
    other = dataclasses.replace(result.case, summarized=False)
    assert sections([dataclasses.replace(result, case=other)]) == []


def test_the_document_shows_them_only_there() -> None:
    result = _result(64, softmax=0.5)
    report = Report(datetime.date(2026, 11, 21), describe_machine(), LIMITS, (result,))
    text = to_markdown(report)
    assert "## Crossover" in text
    assert "By length" not in text
    assert "a/case" not in text


def test_who_loses_clearly_twice_in_succession_is_out() -> None:
    race = Race()
    for slow, near in ((5.0, 5.0), (3.0, 3.0), (4.0, 5.0), (9.0, 3.9)):
        assert not race.is_out("slow")
        race.note(_result(64, slow=slow, near=near))
    assert race.is_out("slow")
    assert not race.is_out("near")
    assert not race.is_out("linear (cpu)")


def test_nobody_loses_where_linear_was_not_measured() -> None:
    race = Race()
    result = _result(64, slow=9.0)
    for _ in range(3):
        race.note(dataclasses.replace(result, methods=result.methods[2:]))
    assert not race.is_out("slow")
