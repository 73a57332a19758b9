"""The command from end to end on a tiny case, and its refusals."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.registry import Case, Method, Registry, Settings, Target

MakeCase = Callable[..., Case]
Arguments = tuple[str, ...]


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _registry(*cases: Case) -> Registry:
    registry = Registry()
    for case in cases:
        registry.add(case)
    return registry


QUICK = ("--quick", "--threads", "1")


def test_a_run_writes_both_documents(
    make_case: MakeCase, twice_as_fast: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = make_case({"slow": 4.0, "fast": 2.0}, targets=(twice_as_fast,))
    assert main([*QUICK, "--out", str(tmp_path)], _registry(case)) == 0
    (markdown,) = tmp_path.glob("*.md")
    (document,) = tmp_path.glob("*.json")
    assert "times faster than slow" in markdown.read_text()
    record = json.loads(document.read_text())
    assert record["complete"] is True
    assert [case["name"] for case in record["cases"]] == ["fixed/case"]
    assert record["limits"]["gemm_float32"] > 0
    assert "fixed/case" in capsys.readouterr().out


def test_a_real_case_runs_to_the_end(tmp_path: Path) -> None:
    arguments = [*QUICK, "--only", "crossover/d32-h1/128", "--out", str(tmp_path)]
    assert main(arguments) == 0
    (document,) = tmp_path.glob("*.json")
    (record,) = json.loads(document.read_text())["cases"]
    assert {method["status"] for method in record["methods"]} == {"measured"}


def test_a_quick_run_leaves_nothing_unless_told_where(
    make_case: MakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(QUICK, _registry(make_case({"a": 1.0}))) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_method_gives_exit_code_one_and_its_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Method("wrong", check=lambda: "off by one", measure=lambda: 1.0)
    case = Case("a", "Wrong.", setup=lambda settings: [wrong])
    assert main([*QUICK, "--out", str(tmp_path)], _registry(case)) == 1
    assert "a, wrong: not correct: off by one" in capsys.readouterr().err


def test_an_interrupted_run_keeps_what_it_has(make_case: MakeCase, tmp_path: Path) -> None:
    def stop(settings: Settings) -> list[Method]:
        raise KeyboardInterrupt

    cases = _registry(make_case({"a": 1.0}), Case("second", "Stops.", setup=stop))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        main([*QUICK, "--out", str(tmp_path)], cases)
    (document,) = tmp_path.glob("*.json")
    assert json.loads(document.read_text())["complete"] is False


def test_no_path_and_no_host_name_gets_into_a_result(make_case: MakeCase, tmp_path: Path) -> None:
    main([*QUICK, "--out", str(tmp_path)], _registry(make_case({"a": 1.0})))
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert str(tmp_path) not in text
        assert str(Path.home()) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_list_names_the_cases(make_case: MakeCase, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"], _registry(make_case({"a": 1.0}))) == 0
    assert capsys.readouterr().out == "fixed/case: A fixed case.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "zebra"), "no benchmark case contains 'zebra'; the cases are fixed/case"),
        (("--threads", "0"), "--threads must be at least 1, got 0; leave it out for 2"),
    ],
)
def test_a_bad_call_is_one_sentence_and_exit_code_two(
    make_case: MakeCase, capsys: pytest.CaptureFixture[str], arguments: Arguments, sentence: str
) -> None:
    assert main(arguments, _registry(make_case({"a": 1.0}))) == 2
    assert capsys.readouterr().err == sentence + "\n"
