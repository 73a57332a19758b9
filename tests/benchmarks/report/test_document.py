"""The document says what was measured and when, and never a number for what was not."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cases import peers  # registers the cases, too
from benchmarks.measure.cases import Case, Method, NotMeasured, Settings, registry
from benchmarks.measure.machine import Limits, Machine
from benchmarks.measure.results import CaseResult, Target, from_record, to_record
from benchmarks.measure.runner import run_case
from benchmarks.report.document import Document, Run, read, to_markdown, write
from benchmarks.report.tables import memory, seconds

MakeCase = Callable[..., Case]
RunCase = Callable[[Case], CaseResult]
RESULTS = Path(__file__).parents[3] / "docs" / "results"
THEMES = sorted({case.theme for case in registry if case.device == "cpu"})
MACHINE = Machine(
    "2026-11-21", "abc1234", "A processor, 2 cores", "torch 2.13.0", "C++ kernels for avx512", 2
)
RUN = Run(MACHINE, Limits(3.3e11, 1.9e12, 4e10))


@pytest.fixture
def run() -> RunCase:
    return lambda case: run_case(case, Settings(threads=1), RUN.limits)


def _document(*results: CaseResult, run: Run = RUN) -> Document:
    names = [result.case.name for result in results]
    document = Document("fixed", "cpu")
    for result in results:
        document = document.updated(run, result, names)
    return document


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _rows(markdown: str, name: str) -> list[list[str]]:
    """The table rows of a document that mention `name`."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and name in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_document_shows_ratio_target_and_verdict(
    make_case: MakeCase, twice_as_fast: Target, run: RunCase
) -> None:
    case = make_case({"slow": 4.2, "fast": 2.0}, targets=(twice_as_fast,))
    (row,) = _rows(to_markdown(_document(run(case))), "times faster")
    shown = ["2.1", "2.1 to 2.1", ">= 2", "yes", "a"]
    assert row == ["fixed/case", "times faster than slow", *shown]


def test_the_document_names_date_commit_hardware_versions_and_command(
    make_case: MakeCase, run: RunCase
) -> None:
    text = to_markdown(_document(run(make_case({"a": 1.0}))))
    for word in (
        "2026-11-21", "abc1234", "A processor", "2.13.0", "330 GFLOP/s", "kernels for avx512",
        "python -m benchmarks --peers --only fixed/",
    ):  # fmt: skip
        assert word in text


def test_a_wrong_method_shows_not_correct_and_no_number(
    make_case: MakeCase, twice_as_fast: Target, run: RunCase
) -> None:
    wrong = Method(lambda: "off by 0.5", measure=lambda: 4.0)
    right = Method(lambda: None, measure=lambda: 2.0)
    made = {"slow": lambda: wrong, "fast": lambda: right}
    case = make_case({}, setup=lambda settings: made, targets=(twice_as_fast,))
    text = to_markdown(_document(run(case)))
    (row,) = [row for row in _rows(text, "not correct") if row[1] == "slow"]
    assert not re.search(r"\d", "".join(row))
    (figure,) = _rows(text, "times faster")
    assert figure[2:4] == ["-", "-"]
    assert figure[5] == "-"


def test_the_command_asks_for_peers_unless_the_run_did_not(
    make_case: MakeCase, run: RunCase
) -> None:
    asked = run(make_case({"ours": 1.0, "peer": "not installed"}))
    with pytest.raises(NotMeasured) as refusal:
        peers.load("anything", Settings())
    not_asked = run(make_case({"ours": 1.0, "peer": str(refusal.value)}))
    on_gpu = dataclasses.replace(_document(not_asked), device="cuda")

    assert "By `python -m benchmarks --peers --only fixed/`." in to_markdown(_document(asked))
    assert "By `python -m benchmarks --only fixed/`." in to_markdown(_document(not_asked))
    assert "By `python -m benchmarks --device cuda --only fixed/`." in to_markdown(on_gpu)


def test_a_missing_peer_says_why(make_case: MakeCase, run: RunCase) -> None:
    text = to_markdown(_document(run(make_case({"peer": "not installed\n| here"}))))
    (row,) = _rows(text, "peer")
    assert row[3:] == ["not installed / here", "a"]


def _limited(gemm: float, copy: float) -> Method:
    """Takes a second and does these shares of the limits in it."""
    return Method(
        lambda: None, measure=lambda: 1.0,
        operations=gemm * RUN.limits.gemm_float32, traffic=copy * RUN.limits.copy_bandwidth,
    )  # fmt: skip


def test_shares_of_the_limits_are_shown(make_case: MakeCase, run: RunCase) -> None:
    made = {"ours": lambda: _limited(0.75, 1.25), "rival": lambda: _limited(0, 0)}
    case = make_case({}, setup=lambda settings: made)
    text = to_markdown(_document(run(case)))
    assert _rows(text, "| ours |")[0][-2:] == ["75%", "125%"]
    assert _rows(text, "| rival |")[0][-2:] == ["-", "-"]


def test_a_share_that_is_promised_reads_in_percent(make_case: MakeCase, run: RunCase) -> None:
    target = Target("share of the GEMM rate", "ours", at_least=0.7, figure="gemm")
    made = {"ours": lambda: _limited(0.66, 0)}
    case = make_case({}, setup=lambda settings: made, targets=(target,))
    (row,) = _rows(to_markdown(_document(run(case))), "share of the GEMM rate")
    assert row[2:6] == ["66%", "66% to 66%", ">= 70%", "**no**"]


def test_a_result_comes_back_from_json(
    make_case: MakeCase, twice_as_fast: Target, run: RunCase
) -> None:
    values = {"gone": "not here", "slow": 4.0, "fast": 2.0}
    result = run(make_case(values, targets=(twice_as_fast,), series="s", at=3))
    assert from_record(CaseResult, json.loads(json.dumps(to_record(result)))) == result


def test_a_case_takes_the_place_of_its_earlier_figures(
    make_case: MakeCase, run: RunCase, tmp_path: Path
) -> None:
    one, two, gone = (run(make_case({"a": 1.0}, name=f"fixed/{n}")) for n in ("1", "2", "gone"))
    write(_document(one, two, gone), tmp_path)
    later = Run(dataclasses.replace(MACHINE, date="2026-12-01", commit="later"), RUN.limits)
    again = run(make_case({"a": 3.0}, name="fixed/2"))
    document = read(tmp_path, "fixed", "cpu").updated(later, again, ["fixed/1", "fixed/2"])
    assert document.entries == ((RUN, one), (later, again))
    write(document, tmp_path)
    assert _names(tmp_path / "fixed") == ["results.json", "results.md"]
    assert read(tmp_path, "fixed", "cpu") == document
    text = (tmp_path / "fixed" / "results.md").read_text()
    assert _rows(text, "fixed/1")[0][6] == "b"
    assert _rows(text, "fixed/2")[0][6] == "a"
    assert text.index("2026-12-01") < text.index("2026-11-21")


def test_the_cases_of_a_run_name_one_run(make_case: MakeCase, run: RunCase, tmp_path: Path) -> None:
    exact = dataclasses.replace(RUN, limits=Limits(3.3e11 / 3, 1.9e12 / 7, 4e10 / 9))
    names = ["fixed/1", "fixed/2"]
    for name in names:  # as the command does: it reads what it wrote after the case before
        result = run(make_case({"a": 1.0}, name=name))
        write(read(tmp_path, "fixed", "cpu").updated(exact, result, names), tmp_path)
    assert len(read(tmp_path, "fixed", "cpu").runs) == 1


def test_a_gpus_results_stand_beside(make_case: MakeCase, run: RunCase, tmp_path: Path) -> None:
    document = dataclasses.replace(_document(run(make_case({"a": 1.0}))), device="cuda")
    write(document, tmp_path)
    assert _names(tmp_path / "fixed") == ["results-cuda.json", "results-cuda.md"]
    assert read(tmp_path, "fixed", "cuda") == document
    assert read(tmp_path, "fixed", "cpu").entries == ()


def test_a_quick_run_says_so(make_case: MakeCase, run: RunCase) -> None:
    quick = dataclasses.replace(RUN, quick=True)
    text = to_markdown(_document(run(make_case({"a": 1.0})), run=quick))
    assert "numbers mean nothing" in text


def test_a_series_is_one_table_with_each_method_beside_the_last(
    make_case: MakeCase, run: RunCase
) -> None:
    members = [
        run(make_case({"A": a, "B": 1.0, "C": 2.0}, name=f"fixed/{at}", series="forward", at=at))
        for at, a in ((100, 4.0), (200, 0.5))
    ]
    text = to_markdown(_document(*members))
    assert "## By length: forward" in text
    assert ["200", "500 ms", "1 s", "2 s", "4.00", "2.00"] in _rows(text, "200")
    assert "The tables above show all." in text


@pytest.mark.parametrize(
    ("value", "shown"), [(1.5, "1.5 s"), (0.0015, "1.5 ms"), (2e-6, "2 us"), (0.0, "0 ns")]
)
def test_seconds_read_well(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(160 * 2**20, "160 MiB"), (32.6 * 2**20, "32.6 MiB"), (None, "-")]
)
def test_memory_reads_well(value: float | None, shown: str) -> None:
    assert memory(value) == shown


@pytest.mark.parametrize("theme", THEMES)
def test_the_tracked_documents_are_what_their_json_says(theme: str) -> None:
    document = read(RESULTS, theme, "cpu")
    assert document.entries
    assert to_markdown(document) == (RESULTS / theme / "results.md").read_text(encoding="utf-8")
