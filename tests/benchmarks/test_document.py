"""The document says what was measured and when, and never a number for what was not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks.case import Case, Method, Settings, registry
from benchmarks.document import Results, to_markdown, write_results
from benchmarks.results import MEASURED, CaseResult, MethodResult, Ratio, Spread
from benchmarks.runner import run_case
from benchmarks.series import crossing, describe_series, interpolate
from linattn_lab.machine import Limits, Machine
from linattn_lab.store import read_records, record_file

MakeCase = Callable[..., Case]
Run = Callable[[Case], CaseResult]
RESULTS = Path(__file__).parents[2] / "docs" / "results"
THEMES = {(case.theme, case.device) for case in registry}
MACHINE = Machine(
    device="cpu", hardware="A processor", software="torch 2.13.0", backends="kernels for avx512",
    threads=2,
)  # fmt: skip
LIMITS = Limits(gemm_float32=3.3e11, gemm_bfloat16=1.9e12, copy_bandwidth=4e10)
NAMES = ("fixed/case", "fixed/1", "fixed/2")


@pytest.fixture
def run() -> Run:
    return lambda case: run_case(case, Settings(threads=1), LIMITS)


def record(command: str = "a command", commit: str = "abc1234", **results: CaseResult) -> Results:
    named = {f"fixed/{name.strip('_')}": result for name, result in results.items()}
    return Results(
        command=command, date="2026-11-21", commit=commit, machine=MACHINE, limits=LIMITS,
        results=named,
    )  # fmt: skip


def show(result: CaseResult) -> str:
    return to_markdown("fixed", "cpu", [record(case=result)], NAMES)


def rows(markdown: str, name: str) -> list[list[str]]:
    """The table rows of a document that have a cell `name`."""
    lines = [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if name in row]


def test_it_names_date_commit_machine_limits_and_command(make_case: MakeCase, run: Run) -> None:
    text = show(run(make_case({"a": 1.0})))
    for word in (
        "2026-11-21", "abc1234", "A processor", "2.13.0", "330 GFLOP/s", "avx512", "`a command`",
    ):  # fmt: skip
        assert word in text


def test_it_shows_times_and_ratios(make_case: MakeCase, run: Run) -> None:
    text = show(run(make_case({"slow": 4.2, "fast": 2.0}, ratios=(("slow", "fast"),))))
    ratio, slow = rows(text, "slow")
    assert ratio == ["fixed/case", "slow", "fast", "2.10", "2.10 to 2.10", "a"]
    assert slow[:4] == ["fixed/case", "slow", "call", "4.20 s"]


def test_a_wrong_method_shows_not_correct_and_no_number(make_case: MakeCase, run: Run) -> None:
    wrong, right = (Method(lambda x=x: x, measure=lambda: 4.0) for x in ("off by 0.5", None))  # type: ignore[misc]
    made = {"slow": lambda: wrong, "fast": lambda: right}
    case = make_case({}, setup=lambda settings: made, ratios=(("slow", "fast"),))
    (row,) = rows(show(run(case)), "slow")
    assert "not correct" in row
    assert not re.search(r"\d", "".join(row))


def test_a_reason_stays_in_its_cell(make_case: MakeCase, run: Run) -> None:
    (row,) = rows(show(run(make_case({"peer": "not installed\n| here"}))), "peer")
    assert "not installed / here" in row


def test_shares_of_the_limits_are_shown(make_case: MakeCase, run: Run) -> None:
    def limited(gemm: float, copy: float) -> Method:
        work = {"operations": gemm * LIMITS.gemm_float32, "traffic": copy * LIMITS.copy_bandwidth}
        return Method(lambda: None, measure=lambda: 1.0, **work)

    made = {"ours": lambda: limited(0.75, 1.25), "rival": lambda: limited(0, 0)}
    text = show(run(make_case({}, setup=lambda settings: made)))
    assert rows(text, "ours")[0][-2:] == ["75%", "125%"]
    assert rows(text, "rival")[0][-2:] == ["-", "-"]


def test_a_case_takes_the_place_of_its_earlier_result(
    make_case: MakeCase, run: Run, tmp_path: Path
) -> None:
    one, two, again = (run(make_case({"a": value})) for value in (1.0, 2.0, 3.0))
    write_results(tmp_path, "fixed", "cpu", record(_1=one, _2=two), NAMES)
    write_results(tmp_path, "fixed", "cpu", record(commit="later", _2=again), NAMES)
    later, earlier = read_records(record_file(tmp_path, "fixed", "cpu"), Results)
    assert (later.results, earlier.results) == ({"fixed/2": again}, {"fixed/1": one})
    text = (tmp_path / "fixed" / "results.md").read_text()
    assert rows(text, "fixed/1")[0][3:7] == ["1.00 s", "1.00 s to 1.00 s", "3", "b"]
    assert rows(text, "fixed/2")[0][3:7] == ["3.00 s", "3.00 s to 3.00 s", "3", "a"]
    assert text.index("later") < text.index("abc1234")


def test_a_gpus_results_stand_beside(make_case: MakeCase, run: Run, tmp_path: Path) -> None:
    write_results(tmp_path, "fixed", "cuda", record(case=run(make_case({"a": 1.0}))), NAMES)
    names = sorted(path.name for path in (tmp_path / "fixed").iterdir())
    assert names == ["results-cuda.json", "results-cuda.md"]


@pytest.mark.parametrize(("theme", "device"), sorted(THEMES))
def test_the_tracked_documents_are_what_their_records_say(theme: str, device: str) -> None:
    records = read_records(record_file(RESULTS, theme, device), Results)  # type: ignore[arg-type]
    if not records:
        pytest.skip("not measured")
    order = [case.name for case in registry if case.device == device]
    document = record_file(RESULTS, theme, device).with_suffix(".md")  # type: ignore[arg-type]
    assert to_markdown(theme, device, records, order) == document.read_text(encoding="utf-8")  # type: ignore[arg-type]


def by_length(
    times: Mapping[str, Mapping[int, float]], peak: float | None = None, **fields: object
) -> dict[str, CaseResult]:
    """A series; the ratios are over the last method. Two units a call."""
    results = {}
    for at in next(iter(times.values())):
        values = {name: curve[at] for name, curve in times.items()}
        *_, last = values
        results[f"fixed/{at}"] = CaseResult(
            shows="A.", series="causal", at=at,
            methods=tuple(
                MethodResult(name=n, status=MEASURED, value=Spread(x, x, x), units=2, peak=peak)
                for n, x in values.items()
            ),
            ratios=tuple(
                Ratio(numerator=last, denominator=n, value=Spread(*[values[last] / x] * 3))
                for n, x in values.items()
            ),
            **fields,
        )  # type: ignore[arg-type]  # fmt: skip
    return results


def test_a_series_is_one_table_with_each_method_beside_the_last() -> None:
    times = {"linear (cpu)": {512: 1e-3, 1_024: 2e-3}, "lsh": {512: 0.25, 1_024: 1.0}}
    title, table = describe_series(by_length(times, peak=4e6))
    assert title == "## By length: causal"
    assert rows(table, "512") == [
        ["512", "1.00 ms, 2.00 MB", "250 ms, 2.00 MB", "250.00", "-"],
    ]  # fmt: skip
    assert describe_series({}) == []


def test_one_table_holds_all_summarized_series_and_rivals() -> None:
    times = {
        "linear (cpu)": {64: 1.0, 128: 1.0}, "linear (torch)": {64: 2.0, 128: 2.0},
        "lsh": {64: 5.0, 128: 5.0}, "softmax": {64: 0.5, 128: 2.0},
    }  # fmt: skip
    table = describe_series(by_length(times, summarized=True))[-1]
    assert rows(table, "heads") == [["heads", "lsh", "softmax"]]
    assert rows(table, "causal") == [["causal", "below 64", "~91"]]


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


def test_a_quadratic_rival_is_crossed_where_the_curves_meet() -> None:
    # The ratio (N / 180) is a power law, so that the interpolation is exact.
    assert interpolate((128, 128 / 180), (256, 256 / 180)) == pytest.approx(180)
