"""Known exponents come out of the fit and are judged; known crossovers come out in words."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks.measure.results import CaseResult, Description, MethodResult, Spread
from benchmarks.report import figure
from benchmarks.report.series import between, crossing, exponent, exponents, sections

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


@pytest.mark.parametrize("known", [0.0, 1.0, 1.2, 2.0])
def test_a_known_exponent_is_recovered_from_noise(known: float) -> None:
    noise = random.Random(0)
    points = [(n, 3e-6 * n**known * noise.uniform(0.97, 1.03)) for n in LENGTHS]
    assert exponent(points) == pytest.approx(known, abs=0.02)


def test_short_sequences_and_single_points_are_not_fitted() -> None:
    members = _series({"linear (cpu)": lambda n: n if n >= 4_096 else 1e9})
    (row,) = _rows(exponents(members, quick=False)).values()
    assert row == ["4,096 to 65,536", "1.00", "0.9 to 1.1", "yes", "-"]
    (row,) = _rows(exponents(members[:4], quick=False)).values()
    assert row == ["-", "-", "0.9 to 1.1", "-", "-"]


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
    assert _rows(exponents(members, quick=True))["lsh-1"] == [lengths, "1.30", "<= 1.2", "-", "-"]


def test_a_method_that_was_not_measured_has_no_exponent() -> None:
    members = _series({"linear (cpu)": _power(1, 1)})
    absent = MethodResult("linear (cpu)", "does not fit")
    gone = [dataclasses.replace(member, methods=(absent,)) for member in members]
    assert _rows(exponents(gone, quick=False))["linear (cpu)"] == ["-", "-", "0.9 to 1.1", "-", "-"]


def test_only_series_per_sample_have_exponents() -> None:
    members = _series({"linear (cpu)": _power(1, 1)})
    assert "### Growth with the length: causal" in sections(members)
    others = [
        dataclasses.replace(member, case=dataclasses.replace(member.case, unit="call"))
        for member in members
    ]
    assert not any("Growth" in part for part in sections(others))


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


def test_the_picture_is_written_where_lengths_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    assert not figure.draw([], path)
    members = _series({"linear (cpu)": _power(1, 1), "softmax": _power(1, 2)})
    assert figure.draw(members, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    summarized = [
        dataclasses.replace(member, case=dataclasses.replace(member.case, summarized=True))
        for member in members
    ]
    assert not figure.draw(summarized, path)
