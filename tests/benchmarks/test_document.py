"""The document says what was measured and when, and never a number for what was not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.case import Case, Method, Settings
from benchmarks.cases import CASES
from benchmarks.document import Results, to_markdown, write_results
from benchmarks.plots import BARS
from benchmarks.results import CaseResult
from benchmarks.runner import run_case
from benchmarks.series import crossing
from linattn_lab.machine import Machine
from linattn_lab.store import read_records, record_file
from tests.benchmarks.helpers import LIMITS, fixed, make_case

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MACHINE = Machine(
    device="cpu", hardware="A processor", software="torch 2.13.0", backends="kernels for avx512",
    threads=2,
)  # fmt: skip
NAMES = ("fixed/case", "fixed/1", "fixed/2")


def run(case: Case) -> CaseResult:
    return run_case(case, Settings(threads=1), LIMITS)


def record(commit: str = "abc1234", **results: CaseResult) -> Results:
    named = {f"fixed/{name.strip('_')}": result for name, result in results.items()}
    return Results(
        command="a command", date="2026-11-21", commit=commit, machine=MACHINE, limits=LIMITS,
        results=named,
    )  # fmt: skip


def show(case: Case) -> str:
    """The document of a case that is run."""
    return to_markdown("fixed", [record(case=run(case))], NAMES)


def rows(markdown: str, name: str) -> list[list[str]]:
    """The table rows of a document that have a cell `name`."""
    lines = [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if name in row]


def test_it_says_when_where_and_what_was_measured() -> None:
    methods = {"slow": fixed(4.2), "fast": fixed(2.0, operations=1.5e9, traffic=2.5e8)}
    text = show(make_case(methods, ratios=(("slow", "fast"),)))
    for word in ("2026-11-21", "abc1234", "A processor", "2.13.0", "avx512", "`a command`"):
        assert word in text
    ratio, slow = rows(text, "slow")
    assert ratio == ["case", "fast", "slow", "2.10", "2.10 to 2.10", "1"]
    assert slow[:4] == ["case", "slow", "call", "4.20 s"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Method(lambda: "off by 0.5", measure=lambda: 4.0), "not correct"),
        ("not installed\n![here](/etc/hostname)", r"not installed !\[here\](/etc/hostname)"),
    ],
)
def test_what_has_no_number_says_why_in_its_cell(method: Method | str, words: str) -> None:
    case = make_case({"slow": method, "fast": 1.0}, ratios=(("slow", "fast"),))
    (row,) = rows(show(case), "slow")
    assert words in row
    assert [cell for cell in row if re.search(r"\d", cell)] == ["1"]  # the run


def test_a_case_takes_the_place_of_its_earlier_result(tmp_path: Path) -> None:
    one, two, again = (run(make_case({"a": value})) for value in (1.0, 2.0, 3.0))
    write_results(tmp_path, "fixed", record(_1=one, _2=two), NAMES)
    write_results(tmp_path, "fixed", record(commit="later", _2=again), NAMES)
    later, earlier = read_records(record_file(tmp_path, "fixed", "cpu"), Results)
    assert (later.results, earlier.results) == ({"fixed/2": again}, {"fixed/1": one})
    text = (tmp_path / "fixed" / "results.md").read_text()
    first, second = rows(text, "a")
    assert first == ["1", "a", "call", "1.00 s", "1.00 s to 1.00 s", "2"]
    assert second == ["2", "a", "call", "3.00 s", "3.00 s to 3.00 s", "1"]
    assert text.index("later") < text.index("abc1234")


def test_what_has_no_number_at_any_length_is_no_column_but_a_sentence() -> None:
    methods = {"fast": 1.0, "peer": "not installed", "slow": 4.0}
    ratios = (("slow", "fast"),)
    text = show(make_case(methods, ratios=ratios, series="both passes", at=1_024))
    (header,) = rows(text, "N")
    assert header == ["N", "fast", "slow", "slow / fast"]
    assert "peer (not installed)" in text


def test_pictures_show_comparisons_that_cases_make() -> None:
    made = {f"{x.name}: {ours} / {rival}" for x in CASES for rival, ours in x.ratios}
    for theme, bars in BARS.items():
        assert {f"{theme}/{comparison}" for comparison in bars.values()} <= made


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/results*.md")), ids=lambda x: x.name)
def test_the_tracked_documents_are_what_their_records_say(file: Path) -> None:
    theme = file.parent.name
    if theme not in {case.theme for case in CASES} or not file.with_suffix(".json").exists():
        pytest.skip("not of benchmarks")
    records = read_records(file.with_suffix(".json"), Results)
    device = records[0].machine.device
    order = [case.name for case in CASES if case.device == device]
    assert to_markdown(theme, records, order) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([(64, 1.1), (128, 2.0)], "below 64"),
        ([(64, 0.25), (128, 0.5), (256, 1.0)], "never up to 256"),
        ([(64, 0.5), (128, 128 / 180), (256, 256 / 180), (512, 3.0)], "~180"),
        ([(64, 2.0), (128, 0.5), (256, 2.0)], "~180"),  # a win that does not last is none
        ([(1_024, 0.5), (2_048, 1.4)], "~1,600"),
        ([], "-"),
    ],
)
def test_the_crossover_in_words(ratios: list[tuple[int, float]], words: str) -> None:
    assert crossing(ratios) == words
