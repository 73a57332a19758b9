"""The command from end to end on tiny cases, and its refusals."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import command
from benchmarks.command import isolated, isolated_limits, main
from benchmarks.measure.cases import Case, Method, Registry, Settings, registry
from benchmarks.measure.machine import Limits
from benchmarks.measure.results import Target
from benchmarks.report.document import read

MakeCase = Callable[..., Case]
Arguments = tuple[str, ...]
QUICK = ("--quick", "--threads", "1")


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_run_writes_a_folder_a_theme(
    make_case: MakeCase, twice_as_fast: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = make_case({"slow": 4.0, "fast": 2.0}, targets=(twice_as_fast,))
    other = make_case({"a": 1.0}, name="other/case")
    assert main([*QUICK, "--out", str(tmp_path)], Registry(case, other)) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["fixed", "other"]
    assert "times faster than slow" in (tmp_path / "fixed" / "results.md").read_text()
    ((run, result),) = read(tmp_path, "fixed", "cpu").entries
    assert run.quick
    assert run.limits.gemm_float32 > 0
    assert result.case.name == "fixed/case"
    assert "written: " in capsys.readouterr().out


def test_a_quick_run_leaves_nothing_unless_a_folder_was_named(
    make_case: MakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(QUICK, Registry(make_case({"a": 1.0}))) == 0
    assert list(tmp_path.iterdir()) == []
    assert "fixed/case" in capsys.readouterr().out


def test_a_real_case_runs_to_the_end(tmp_path: Path) -> None:
    assert main([*QUICK, "--only", "crossover/d32-h1/128", "--out", str(tmp_path)]) == 0
    ((_, result),) = read(tmp_path, "crossover", "cpu").entries
    for method in result.methods:
        assert method.status == "measured" or "no live backend" in method.status


def test_a_process_of_its_own_measures_every_method() -> None:
    settings = Settings(quick=True, threads=1)
    limits = isolated_limits(settings)
    assert limits.copy_bandwidth > 0
    case = registry.named("operator/bfloat16/forward", "cpu")
    result = isolated(case, settings, limits)
    assert result.case == case.description
    assert [method.name for method in result.methods] == list(case.setup(settings))
    for method in result.methods:
        assert method.status == "measured" or "no live backend" in method.status


def test_a_case_that_dies_costs_only_itself(make_case: MakeCase) -> None:
    unknown = make_case({"a": 1.0}, name="nobody/knows", targets=(Target("a", "a", at_most=1),))
    result = isolated(unknown, Settings(), Limits(1, 1, 1))
    assert result.method("every method").status == "lost: its process ended with exit code 1"


def test_cases_that_die_are_told_and_the_exit_code(
    make_case: MakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "isolated_limits", lambda settings: Limits(1, 1, 1))
    names = ["nobody/knows", "nobody/else"]  # a process of its own finds them in no registry
    cases = Registry(*(make_case({"a": 1.0}, name=name) for name in names))
    assert main(["--threads", "1", "--out", str(tmp_path)], cases) == 1
    assert [result.case.name for result in read(tmp_path, "nobody", "cpu").results] == names
    died = "every method: lost: its process ended with exit code 1"
    said = capsys.readouterr().err
    assert all(f"{name}, {died}" in said for name in names)
    assert died.partition(": ")[2] in (tmp_path / "nobody" / "results.md").read_text()


def test_a_case_that_breaks_leaves_the_others(
    make_case: MakeCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(settings: Settings) -> dict[str, Callable[[], Method]]:
        raise KeyError("x")

    cases = Registry(make_case({}, name="fixed/broken", setup=breaks), make_case({"a": 1.0}))
    assert main([*QUICK, "--out", str(tmp_path)], cases) == 1
    broken, other = read(tmp_path, "fixed", "cpu").results
    assert [method.status for method in broken.methods] == ["raised KeyError: 'x'"]
    assert other.method("a").status == "measured"
    assert "fixed/broken, every method: raised KeyError" in capsys.readouterr().err


def test_a_method_that_is_wrong_is_told_and_the_exit_code(
    make_case: MakeCase, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Method(lambda: "off by one", measure=lambda: 1.0)
    made = {"wrong": lambda: wrong}
    case = make_case({}, setup=lambda settings: made)
    assert main(QUICK, Registry(case)) == 1
    assert "fixed/case, wrong: not correct: off by one" in capsys.readouterr().err


def test_an_interrupted_run_keeps_what_it_has(make_case: MakeCase, tmp_path: Path) -> None:
    def stop(settings: Settings) -> dict[str, Callable[[], Method]]:
        raise KeyboardInterrupt

    cases = Registry(make_case({"a": 1.0}), make_case({}, name="fixed/second", setup=stop))
    with pytest.raises(KeyboardInterrupt):
        main([*QUICK, "--out", str(tmp_path)], cases)
    assert [r.case.name for r in read(tmp_path, "fixed", "cpu").results] == ["fixed/case"]


def test_no_path_and_no_host_name_gets_into_a_result(make_case: MakeCase, tmp_path: Path) -> None:
    main([*QUICK, "--out", str(tmp_path)], Registry(make_case({"a": 1.0})))
    for path in (tmp_path / "fixed").iterdir():
        text = path.read_text()
        assert str(tmp_path) not in text
        assert str(Path.home()) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_list_names_the_cases_of_the_device(
    make_case: MakeCase, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = Registry(make_case({"a": 1.0}), make_case({}, name="g/p", device="cuda"))
    assert main(["--list"], cases) == 0
    assert capsys.readouterr().out == "fixed/case: A fixed case.\n"
    assert main(["--list", "--device", "cuda"], cases) == 0
    assert capsys.readouterr().out == "g/p: A fixed case.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "zebra"), "--only: expected part of a case's name, got 'zebra'; the themes on "
         "cpu are fixed/ and --list names the cases."),
        (("--threads", "0"), "--threads: expected 1 or more, got 0; leave it out for 2."),
    ],
)  # fmt: skip
def test_a_bad_call_is_one_sentence_and_exit_code_two(
    make_case: MakeCase, capsys: pytest.CaptureFixture[str], arguments: Arguments, sentence: str
) -> None:
    assert main(arguments, Registry(make_case({"a": 1.0}))) == 2
    assert capsys.readouterr().err == sentence + "\n"


def test_without_a_gpu_its_cases_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("--device cuda: expected a GPU, got none that torch")
