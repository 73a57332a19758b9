"""The tests' outcomes come through, also when the run is stopped or broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.gpu import build, suite
from benchmarks.gpu.child import Ended
from benchmarks.gpu.suite import Suite, SuiteOutcome, read

TESTS = """
import warnings
import pytest

def test_passes():
    warnings.warn("of another version")

def test_fails():
    assert 1 == 2, "they differ"

@pytest.mark.skip(reason="no reason")
def test_skipped(): pass

@pytest.fixture
def breaks():
    yield
    raise RuntimeError("at the end")

def test_tears_down(breaks): pass
"""
HANGS = """
import time
def test_first(): pass
def test_hangs(): time.sleep(600)
"""
ENDED = Ended(0, "", 1.0, timed_out=False)


def _run(text: str, folder: Path, seconds: float = 120) -> SuiteOutcome:
    (folder / "test_some.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(build.ROOT)}
    return suite.run(
        Suite("some", ("test_some.py",), 1), seconds, root=folder, environment=environment,
        scratch=folder,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_each_outcome_is_counted(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "WORKERS", workers)
    outcome = _run(TESTS, tmp_path)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    messages = dict(outcome.failures)
    assert "they differ" in messages["test_some.py::test_fails"]
    assert "at the end" in messages["test_some.py::test_tears_down"]
    assert outcome.status == "complete"
    assert not outcome.green


def test_a_run_that_is_stopped_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "WORKERS", 1)
    outcome = _run(HANGS, tmp_path, seconds=20)
    assert outcome.passed == 1
    assert outcome.unfinished == ("test_some.py::test_hangs",)
    assert "when its time was over" in outcome.status
    assert not outcome.green


def test_a_file_that_does_not_import_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "WORKERS", 1)
    outcome = _run("import no_such_module", tmp_path)
    assert outcome.failed == 1
    assert "no_such_module" in outcome.failures[0][1]
    assert outcome.status == "pytest ended with exit code 2"


def test_a_run_without_tests_shows_what_pytest_said() -> None:
    outcome = read("none", [], Ended(4, "unrecognized arguments", 1.0, timed_out=False))
    assert outcome.status == "pytest ended with exit code 4"
    assert outcome.output == "unrecognized arguments"
    assert not outcome.green


def test_a_test_that_failed_stays_so() -> None:
    lines = [{"test": "a", "outcome": word} for word in ("started", "failed", "passed")]
    assert (read("x", lines, ENDED).failed, read("x", lines, ENDED).passed) == (1, 0)


def test_the_suites_are_of_both_backends_and_the_marked_tests(repository: Path) -> None:
    named = {each.name: " ".join(each.arguments) for each in suite.suites(repository)}
    assert named["contract, cuda"] == "tests/contract --backend cuda"
    assert named["contract, cupy"] == "tests/contract --backend cupy"
    assert named["tests marked gpu"].endswith("tests/models -m gpu")


def test_a_warning_fails_no_test_and_nothing_is_left_in_the_tree(tmp_path: Path) -> None:
    words = suite.command(Suite("a", ("x",), 1), tmp_path)
    assert words[words.index("-W") + 1] == "default"
    assert "no:cacheprovider" in words
