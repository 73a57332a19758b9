"""The document says what was measured, and never a number for what was not."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.machine import Limits, Machine
from benchmarks.registry import Absent, Case, Method, Settings, Target
from benchmarks.report import Report, to_json, to_markdown, write
from benchmarks.runner import CaseResult, run_case
from benchmarks.tables import first_win, quantity

MakeCase = Callable[..., Case]
MACHINE = Machine(
    "2-core-avx512", "A processor", 2, 2, 16.0, "Linux x86_64", "3.11.2", "2.13.0",
    {"linattn-core": "0.1.0"}, {"cpu": "C++ kernels for avx512"},
    "glibc 2.36 malloc, default settings", "abc1234",
)  # fmt: skip
LIMITS = Limits(3.3e11, 1.9e12, 4e10)
DAY = datetime.date(2026, 11, 21)


def _report(*results: CaseResult, **fields: bool) -> Report:
    return Report(DAY, MACHINE, LIMITS, results, **fields)


def _run(case: Case) -> CaseResult:
    return run_case(case, Settings(threads=1), limits=LIMITS)


def _rows(markdown: str, name: str) -> list[list[str]]:
    """The table rows of a document that mention `name`."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and name in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_document_shows_ratio_target_and_verdict(
    make_case: MakeCase, twice_as_fast: Target
) -> None:
    case = make_case({"slow": 4.2, "fast": 2.0}, targets=(twice_as_fast,))
    (row,) = _rows(to_markdown(_report(_run(case))), "times faster")
    assert row == ["fixed/case", "times faster than slow", "2.1", "2.1 to 2.1", ">= 2", "yes", "-"]


def test_the_document_names_hardware_versions_commit_and_date(make_case: MakeCase) -> None:
    text = to_markdown(_report(_run(make_case({"a": 1.0}))))
    for word in ("2026-11-21", "2-core-avx512", "A processor", "2.13.0", "abc1234", "330 GFLOP/s",
        "cpu: C++ kernels for avx512",
    ):  # fmt: skip
        assert word in text


def test_a_wrong_method_shows_not_correct_and_no_number(
    make_case: MakeCase, twice_as_fast: Target
) -> None:
    wrong = Method("slow", check=lambda: "off by 0.5", measure=lambda: 4.0)
    case = make_case({"fast": 2.0}, targets=(twice_as_fast,))
    both = dataclasses.replace(case, setup=lambda settings: [*case.setup(settings), wrong])
    text = to_markdown(_report(_run(both)))
    (row,) = [row for row in _rows(text, "not correct") if row[1] == "slow"]
    assert not re.search(r"\d", "".join(row))
    (figure,) = _rows(text, "times faster")
    assert figure[2:4] == ["-", "-"]
    assert figure[-2:] == ["-", "-"]


def test_a_missing_peer_says_not_installed(make_case: MakeCase) -> None:
    case = dataclasses.replace(
        make_case({}), setup=lambda settings: [Absent("fast-transformers", "not installed")]
    )
    (row,) = _rows(to_markdown(_report(_run(case))), "fast-transformers")
    assert row[3:] == ["not installed", "-", "-", "-", "-"]


def test_an_estimated_figure_is_marked_wherever_it_goes() -> None:
    def setup(_: Settings) -> list[Method | Absent]:
        return [
            Method("slow", check=lambda: None, measure=lambda: 8.0, estimated=True),
            Method("fast", check=lambda: None, measure=lambda: 2.0),
        ]

    target = Target("times faster than slow", "slow", "fast", at_least=2)
    text = to_markdown(_report(_run(Case("a", "Marks.", setup, targets=(target,)))))
    assert _rows(text, "times faster")[0][2] == "4 (estimated)"
    assert any(row[3] == "8 s (estimated)" for row in _rows(text, "slow"))
    assert not any("estimated" in row[3] for row in _rows(text, "| fast |"))


def _limited(name: str, gemm: float, copy: float) -> Method:
    """Takes a second and does these shares of the limits in it."""
    return Method(
        name, check=lambda: None, measure=lambda: 1.0,
        operations=gemm * LIMITS.gemm_float32, traffic=copy * LIMITS.copy_bandwidth,
    )  # fmt: skip


def test_every_method_shows_its_shares_of_the_limits() -> None:
    methods: list[Method | Absent] = [_limited("computing", 0.75, 0.25), _limited("bare", 0, 0)]
    text = to_markdown(_report(_run(Case("a", "Shares.", lambda _: methods))))
    assert _rows(text, "computing")[0][-2:] == ["75%", "25%"]
    assert _rows(text, "bare")[0][-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("gemm", "copy", "shown"),
    [(0.75, 0.25, "75% of GEMM"), (0.1, 0.5, "50% of copy"), (0, 1.25, "125% of copy")],
)
def test_a_target_shows_the_limit_that_its_method_is_nearest_to(
    gemm: float, copy: float, shown: str
) -> None:
    methods: list[Method | Absent] = [_limited("ours", gemm, copy), _limited("rival", 0.01, 0.01)]
    target = Target.faster("ours", "rival", 2)
    (row,) = _rows(
        to_markdown(_report(_run(Case("a", "Shares.", lambda _: methods, targets=(target,))))),
        "times as fast",
    )
    assert row[-1] == shown


def test_a_share_that_is_promised_reads_in_percent() -> None:
    target = Target("share of the GEMM rate", "ours", at_least=0.7, of_gemm=True)
    case = Case("a", "Shares.", lambda _: [_limited("ours", 0.66, 0)], targets=(target,))
    (row,) = _rows(to_markdown(_report(_run(case))), "share of the GEMM rate")
    assert row[2:6] == ["66%", "66% to 66%", ">= 70%", "**no**"]


def test_json_holds_every_sample(make_case: MakeCase, twice_as_fast: Target) -> None:
    case = make_case({"slow": 4.0, "fast": 2.0}, targets=(twice_as_fast,))
    document = json.loads(to_json(_report(_run(case))))
    (record,) = document["cases"]
    assert record["methods"][0]["samples"] == [4.0, 4.0, 4.0]
    assert record["targets"][0]["reached"] is True
    assert document["machine"]["commit"] == "abc1234"
    assert document["limits"]["copy_bandwidth"] == 4e10


def test_results_are_dated_and_never_overwritten(make_case: MakeCase, tmp_path: Path) -> None:
    report = _report(_run(make_case({"a": 1.0})))
    first, second = write(report, tmp_path / "results"), write(report, tmp_path / "results")
    assert [path.name for path in first] == [
        "2026-11-21-2-core-avx512.md", "2026-11-21-2-core-avx512.json",
    ]  # fmt: skip
    assert [path.name for path in second] == [
        "2026-11-21-2-core-avx512-2.md", "2026-11-21-2-core-avx512-2.json",
    ]  # fmt: skip


def test_quick_and_stopped_runs_say_so(make_case: MakeCase) -> None:
    result = _run(make_case({"a": 1.0}))
    assert "numbers mean nothing" in to_markdown(_report(result, quick=True))
    assert _report(result, quick=True).name.endswith("-quick")
    assert "stopped before its last case" in to_markdown(_report(result, complete=False))


@pytest.mark.parametrize(
    ("rival_seconds", "sentence"),
    [
        ([0.5, 2.0, 3.0], "A is faster than B from N=200 on"),
        ([2.0, 2.0, 2.0], "A is faster than B at every length measured"),
        ([0.5, 0.5, 0.5], "A is not yet faster than B at N=400"),
        # A win that does not last is none.
        ([2.0, 0.5, 2.0], "A is faster than B from N=400 on"),
    ],
)
def test_the_crossover_is_named(
    make_case: MakeCase, rival_seconds: list[float], sentence: str
) -> None:
    members = [
        _run(make_case({"A": 1.0, "B": seconds}, series="forward", at=at))
        for at, seconds in zip((100, 200, 400), rival_seconds, strict=True)
    ]
    assert sentence in first_win(members)
    text = to_markdown(_report(*members))
    assert "## By length: forward" in text
    assert [
        "400",
        "1 s",
        quantity(rival_seconds[2], "seconds"),
        f"{rival_seconds[2]:.2f}",
    ] in _rows(text, "400")


def test_each_method_of_a_series_is_held_against_the_last(make_case: MakeCase) -> None:
    members = [
        _run(make_case({"A": a, "B": 1.0, "C": 2.0}, series="forward", at=at))
        for at, a in ((100, 4.0), (200, 0.5))
    ]
    assert first_win(members) == (
        "A is faster than C from N=200 on (of the lengths measured). "
        "B is faster than C at every length measured."
    )
    row = ["200", "500 ms", "1 s", "2 s", "4.00", "2.00"]
    assert row in _rows(to_markdown(_report(*members)), "200")


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (1.5, "seconds", "1.5 s"), (0.0015, "seconds", "1.5 ms"), (2e-6, "seconds", "2 us"),
        (0.0, "seconds", "0 ns"), (160 * 2**20, "bytes", "160 MiB"),
        (32.6 * 2**20, "bytes", "32.6 MiB"),
    ],
)  # fmt: skip
def test_quantities_read_well(value: float, kind: str, shown: str) -> None:
    assert quantity(value, kind) == shown  # type: ignore[arg-type]
