"""The command from end to end on tiny cases, and its refusals."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import command
from benchmarks.case import Case, Method, Registry, Settings, registry
from benchmarks.command import isolated_limits, main, measure_apart
from benchmarks.document import Results
from linattn_lab.machine import Limits
from linattn_lab.store import read_records, record_file

MakeCase = Callable[..., Case]
QUICK = ("--quick", "--threads", "1")


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def read(folder: Path, theme: str) -> Results:
    """The one record of a theme."""
    (record,) = read_records(record_file(folder, theme, "cpu"), Results)
    return record


def test_a_run_writes_a_folder_a_theme(
    make_case: MakeCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = make_case({"slow": 4.0, "fast": 2.0})
    other = make_case({"a": 1.0}, name="other/case")
    assert main([*QUICK, "--out", str(tmp_path)], Registry(case, other)) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["fixed", "other"]
    assert "4.00 s" in (tmp_path / "fixed" / "results.md").read_text()
    record = read(tmp_path, "fixed")
    assert record.command == "python -m benchmarks --quick --threads 1"
    assert record.limits is not None and record.limits.gemm_float32 > 0
    assert list(record.results) == ["fixed/case"]
    assert "written: " in capsys.readouterr().out


def test_a_quick_run_leaves_nothing_unless_a_folder_was_named(
    make_case: MakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(QUICK, Registry(make_case({"a": 1.0}))) == 0
    assert list(tmp_path.iterdir()) == []
    assert "fixed/case" in capsys.readouterr().out


def test_a_process_of_its_own_measures_every_method() -> None:
    settings = Settings(quick=True, threads=1)
    limits = isolated_limits(settings)
    assert limits.copy_bandwidth > 0
    case = registry.find("operator/bfloat16/forward")
    result = measure_apart(case, settings, limits)
    assert [method.name for method in result.methods] == list(case.setup(settings))
    for method in result.methods:
        assert method.status == "measured" or "no live backend" in method.status


def test_cases_that_die_are_told_and_the_exit_code(
    make_case: MakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "isolated_limits", lambda settings: limits)
    names = ["nobody/knows", "nobody/else"]  # a process of its own finds them in no registry
    cases = Registry(*(make_case({"a": 1.0}, name=name) for name in names))
    assert main(["--threads", "1", "--out", str(tmp_path)], cases) == 1
    assert list(read(tmp_path, "nobody").results) == names
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
    broken, other = read(tmp_path, "fixed").results.values()
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
    assert list(read(tmp_path, "fixed").results) == ["fixed/case"]


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
    "arguments", [("--only", "zebra"), ("--threads", "0"), ("--device", "cuda")]
)
def test_a_bad_call_is_one_sentence_and_exit_code_two(
    make_case: MakeCase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, str],
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cases = Registry(make_case({"a": 1.0}), make_case({}, device="cuda"))
    assert main(arguments, cases) == 2
    said = capsys.readouterr().err
    assert said.startswith(arguments[0])
    assert said.count("\n") == 1
