"""A call in a process of its own gives its answer, or the reason why there is none."""

from __future__ import annotations

import operator
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.case import Settings
from benchmarks.cases.methods import peak_of_call
from benchmarks.cases.operators import MATERIALIZED
from benchmarks.cases.problem import Problem
from benchmarks.processes import run_apart
from benchmarks.runner import guard
from linattn_lab.timing import NotMeasured

MIB = 2**20
TOLERANCE = 2 * MIB  # the interpreter's own needs, and the kernel's counters per CPU


def _refuse() -> None:
    raise NotMeasured("not here")


def _more_than_is_free() -> object:
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return guard(partial(torch.empty, most + 1, dtype=torch.uint8)).nbytes


def test_an_answer_comes_back() -> None:
    assert run_apart(operator.add, "a", "b", threads=1) == "ab"


def test_what_a_call_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_apart(os.system, "echo printed", threads=1) == 0
    assert capfd.readouterr().err == "printed\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU memory is not limited")
def test_a_call_that_needs_more_than_is_free_says_so() -> None:
    with pytest.raises(NotMeasured, match="does not fit"):
        run_apart(_more_than_is_free, threads=1)


def test_a_reason_comes_back() -> None:
    with pytest.raises(NotMeasured, match="not here"):
        run_apart(_refuse, threads=1)


@pytest.mark.parametrize(
    ("call", "argument", "words"),
    [(os._exit, 7, "ended with exit code 7"), (os.abort, None, "died by SIGABRT")],
)
def test_a_process_that_dies_says_how(call: Any, argument: Any, words: str) -> None:
    arguments = () if argument is None else (argument,)
    with pytest.raises(NotMeasured, match=f"its process {words}"):
        run_apart(call, *arguments, threads=1)


def test_a_process_that_hangs_is_stopped() -> None:
    started = time.monotonic()
    with pytest.raises(NotMeasured, match="stopped after 1 s"):
        run_apart(time.sleep, 600, threads=1, seconds=1)
    assert time.monotonic() - started < 300


def _start_another(file: str) -> None:
    """Starts a process, writes its number, and never ends."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(file).write_text(str(started.pid))
    time.sleep(600)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def test_what_a_stopped_process_has_started_is_stopped_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(NotMeasured, match="stopped"):
        run_apart(_start_another, str(file), threads=1, seconds=20)
    assert _has_ended(int(file.read_text()))


@pytest.mark.parametrize("backward", [False, True])
def test_a_peak_counts_what_a_call_returns_and_not_its_inputs(backward: bool) -> None:
    problem = Problem(2**14, backward=backward)  # a tensor has 32 MiB
    peak = run_apart(peak_of_call, "linear (torch)", problem, Settings(threads=1), threads=1)
    tensor = problem.numbers * problem.dtype.itemsize
    results = 4 if backward else 1  # the output, and with the backward pass three gradients
    assert results * tensor - TOLERANCE <= peak < (results + 12) * tensor


def test_a_peak_counts_scratch_that_is_freed_before_the_call_returns() -> None:
    problem = Problem(2_048, heads=1, width=8)
    peak = run_apart(peak_of_call, MATERIALIZED, problem, Settings(threads=1), threads=1)
    assert peak >= problem.length**2 * problem.dtype.itemsize - TOLERANCE
