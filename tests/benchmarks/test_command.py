"""The command from end to end on tiny cases, and its refusals."""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import pytest
import torch

from benchmarks import command
from benchmarks.case import Case, Method, Settings
from benchmarks.command import Flags, main
from benchmarks.document import Results
from linattn_lab.store import read_records, record_file
from tests.benchmarks.helpers import LIMITS, make_case, raising

FLAGS = Flags(Settings(quick=True, threads=1))
BROKEN = make_case({}, name="fixed/broken", setup=raising(KeyError("x")))
STOPPED = make_case({}, name="fixed/stopped", setup=raising(KeyboardInterrupt()))
RIGHT = make_case({"slow": 4.0, "fast": 2.0})
WRONG = make_case({"off": Method(lambda: "off by one")}, name="fixed/wrong")
# A process of its own finds them in no table.
UNKNOWN = [make_case({"a": 1.0}, name=name) for name in ("nobody/knows", "nobody/else")]
DIED = "lost: its process ended with exit code 1"


def read(folder: Path, theme: str) -> Results:
    """The one record of a theme."""
    (record,) = read_records(record_file(folder, theme, "cpu"), Results)
    return record


def test_a_run_writes_a_folder_a_theme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [RIGHT, make_case({"a": 1.0}, name="other/case")]
    main(dataclasses.replace(FLAGS, out=tmp_path), cases)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["fixed", "other"]
    assert "4.00 s" in (tmp_path / "fixed" / "results.md").read_text()
    record = read(tmp_path, "fixed")
    assert record.command == "python -m benchmarks --quick --threads 1"
    assert record.limits is not None and record.limits.gemm_float32 > 0
    assert list(record.results) == ["fixed/case"]
    assert "written: " in capsys.readouterr().out
    for path in (tmp_path / "fixed").iterdir():  # no path and no name of a host gets into a result
        text = path.read_text()
        assert str(tmp_path) not in text and str(Path.home()) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_a_quick_run_leaves_nothing_unless_a_folder_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(FLAGS, [RIGHT])
    assert list(tmp_path.iterdir()) == []
    assert "# Fixed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "cases", "said"),
    [
        (Flags(Settings(threads=1)), UNKNOWN, [f"{x.name}, every method: {DIED}" for x in UNKNOWN]),
        (FLAGS, [BROKEN, RIGHT], ["fixed/broken, every method: raised KeyError: 'x'"]),
        (FLAGS, [WRONG, RIGHT], ["fixed/wrong, off: not correct: off by one"]),
    ],
    ids=["died", "broke", "wrong"],
)
def test_a_fault_is_told_kept_and_the_exit_code_and_leaves_the_others(
    flags: Flags, cases: list[Case], said: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "isolated_limits", lambda settings: LIMITS)
    with pytest.raises(SystemExit) as ended:
        main(dataclasses.replace(flags, out=tmp_path), cases)
    assert ended.value.code == 1
    results = read(tmp_path, cases[0].theme).results
    assert list(results) == [case.name for case in cases]
    if RIGHT in cases:
        assert results["fixed/case"].method("fast").status == "measured"
    errors = capsys.readouterr().err
    document = (tmp_path / cases[0].theme / "results.md").read_text()
    for sentence in said:
        assert sentence in errors
        assert sentence.split(": ")[1] in document


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        main(dataclasses.replace(FLAGS, out=tmp_path), [RIGHT, STOPPED])
    assert list(read(tmp_path, "fixed").results) == ["fixed/case"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (Flags(only="zebra"), "--only"),
        (Flags(Settings(threads=0)), "--threads"),
        (Flags(Settings(device="cuda")), "--device"),
    ],
)
def test_a_bad_call_is_refused(monkeypatch: pytest.MonkeyPatch, flags: Flags, named: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"^{named}"):
        main(flags, [RIGHT, make_case({}, device="cuda")])


@pytest.mark.parametrize("place", ["fixed", "fixed/results.json"])
def test_results_that_could_not_be_written_are_refused_before_the_work(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("in the way")
    with pytest.raises((ValueError, OSError), match=str(tmp_path / place)):
        main(dataclasses.replace(FLAGS, out=tmp_path), [STOPPED])
