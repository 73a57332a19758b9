"""Exponents that are known come out of the fit; who is best where is said as it is."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks import figure
from benchmarks.growth import best, exponent, exponents, fit, held, seconds, sections
from benchmarks.records import case_record, result_of
from benchmarks.registry import Case
from benchmarks.runner import CaseResult, MethodResult
from benchmarks.timer import Spread

LENGTHS = tuple(2**power for power in range(9, 17))

Curve = Callable[[int], float]


def _series(
    times: Mapping[str, Curve], peaks: Mapping[str, Curve] | None = None
) -> list[CaseResult]:
    return [_at(length, times, peaks or {}) for length in LENGTHS]


def _at(length: int, times: Mapping[str, Curve], peaks: Mapping[str, Curve]) -> CaseResult:
    """A batch of two, so that a sample has half of a call's time and memory."""

    def method(name: str) -> MethodResult:
        taken = times[name](length)
        held = 2 * peaks[name](length) if name in peaks else None
        spread = Spread(taken, taken, taken)
        return MethodResult(name, "measured", (2 * taken,), units=2, value=spread, peak=held)

    case = Case(
        f"lengths/{length}", "A length.", lambda _: [], unit="sample", series="causal", at=length
    )
    return CaseResult(case, tuple(method(name) for name in times), ())


def _power(scale: float, exponent: float) -> Curve:
    return lambda length: scale * float(length) ** exponent


@pytest.mark.parametrize("known", [0.0, 1.0, 1.2, 2.0])
def test_a_known_exponent_is_recovered_from_noise(known: float) -> None:
    noise = random.Random(0)
    points = [(n, 3e-6 * n**known * noise.uniform(0.97, 1.03)) for n in LENGTHS]
    assert exponent(points) == pytest.approx(known, abs=0.02)


def test_short_sequences_and_single_points_are_not_fitted() -> None:
    members = _series({"linear (cpu)": lambda n: n if n >= 4_096 else 1e9})
    found = fit(members, "linear (cpu)", seconds)
    assert found is not None
    assert found.exponent == pytest.approx(1)
    assert found.lengths == LENGTHS[3:]
    assert fit(members[:4], "linear (cpu)", seconds) is None
    assert fit(members, "linear (cpu)", held) is None


def _rows(markdown: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in markdown.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_exponents_stand_beside_what_is_promised() -> None:
    times = {
        "linear (cpu)": _power(1, 1.05), "lsh-1": _power(1, 1.3), "lsh-4": _power(1, 0.9),
        "softmax SDPA": _power(1, 2), "another": _power(1, 1),
    }  # fmt: skip
    members = _series(times, {"linear (cpu)": _power(1, 1)})
    rows = _rows(exponents(members, quick=False))
    lengths = "4,096 to 65,536"
    assert rows["linear (cpu)"] == [lengths, "1.05", "0.9 to 1.1", "yes", "1.00"]
    assert rows["lsh-1"] == [lengths, "1.30", "<= 1.2", "**no**", "-"]
    assert rows["lsh-4"] == [lengths, "0.90", "<= 1.2", "yes", "-"]
    assert rows["softmax SDPA"] == [lengths, "2.00", "1.9 to 2.1", "yes", "-"]
    assert rows["another"] == [lengths, "1.00", "-", "-", "-"]
    assert _rows(exponents(members, quick=True))["lsh-1"][3] == "-"


def test_a_method_that_was_not_measured_has_no_exponent() -> None:
    members = _series({"linear (cpu)": _power(1, 1)})
    (method,) = members[0].methods
    absent = dataclasses.replace(method, value=None, samples=(), status="does not fit")
    gone = [dataclasses.replace(member, methods=(absent,)) for member in members]
    expected = ["-", "-", "0.9 to 1.1", "-", "-"]
    assert _rows(exponents(gone, quick=False))["linear (cpu)"] == expected


def test_linear_is_said_to_be_the_best_where_it_is() -> None:
    times = {"linear (cpu)": _power(1, 1), "lsh-1": _power(2, 1), "softmax": _power(1e-3, 2)}
    table, words = best(_series(times, {"linear (cpu)": _power(4, 1), "lsh-1": _power(12, 1)}))
    where = "at every length measured from 1,024 to 65,536"
    assert words == (
        f"Linear attention is the fastest {where}. Linear attention is the smallest {where}."
    )
    assert _rows(table)["1,024"] == ["linear (cpu)", "1.02", "linear (cpu)", "3.00"]
    assert _rows(table)["65,536"][:2] == ["linear (cpu)", "2.00"]


def test_where_linear_is_not_the_best_the_document_says_by_how_much() -> None:
    times = {"linear (cpu)": lambda n: 1.0, "linear (torch)": lambda n: 3.0,
             "softmax": lambda n: 0.5 if n == 1_024 else 2.0}  # fmt: skip
    table, words = best(_series(times))
    assert "from 1,024 to 65,536 but at N=1,024 (softmax 500 ms, linear (cpu) 1 s)." in words
    assert "smallest" not in words
    assert _rows(table)["1,024"] == ["softmax", "0.50", "-", "-"]


def test_nothing_is_claimed_without_a_native_backend() -> None:
    assert best(_series({"linear (torch)": _power(1, 1), "softmax": _power(1, 2)})) == []


def test_only_series_per_sample_have_these_tables() -> None:
    members = _series({"linear (cpu)": _power(1, 1)})
    heading, *rest = sections(members, quick=False)
    assert heading == "### Growth with the length: causal"
    assert len(rest) == 3
    assert len(sections(members, quick=True)) == 2
    others = [
        dataclasses.replace(member, case=dataclasses.replace(member.case, unit="call"))
        for member in members
    ]
    assert sections(others, quick=False) == []


def test_results_read_back_give_the_same_tables() -> None:
    members = _series({"linear (cpu)": _power(1, 1)}, {"linear (cpu)": _power(1, 1)})
    again = [result_of(case_record(member)) for member in members]
    assert sections(again, quick=False) == sections(members, quick=False)


def test_the_picture_is_written(tmp_path: Path) -> None:
    members = _series({"linear (cpu)": _power(1, 1), "softmax": _power(1, 2)})
    path = tmp_path / "figure.png"
    assert figure.draw(members, path) is None
    assert path.read_bytes().startswith(b"\x89PNG")
    with_memory = _series({"linear (cpu)": _power(1, 1)}, {"linear (cpu)": _power(1, 1)})
    assert figure.draw(with_memory, path) is None


def test_there_is_no_picture_of_what_is_summarized(tmp_path: Path) -> None:
    members = _series({"linear (cpu)": _power(1, 1)})
    summarized = [
        dataclasses.replace(member, case=dataclasses.replace(member.case, summarized=True))
        for member in members
    ]
    for results in (summarized, []):
        assert figure.draw(results, tmp_path / "none.png") == figure.NOTHING
    assert list(tmp_path.iterdir()) == []
