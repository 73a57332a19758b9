"""A call in a process of its own gives its answer, or the reason why there is none."""

from __future__ import annotations

import operator
import os
import resource
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.case import Settings
from benchmarks.cases.methods import peak_of_call
from benchmarks.cases.problem import Problem
from benchmarks.runner import guard
from linattn_lab.processes import run_apart, stop_tree
from linattn_lab.timing import NotMeasured

MIB = 2**20
TOLERANCE = 2 * MIB  # the interpreter's own needs, and the kernel's counters per CPU
FOREVER = 3_600
SAYS = f"import time; print('started', flush=True); time.sleep({FOREVER}); print('went on')"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAYS!r}])"


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


@pytest.mark.parametrize(
    ("call", "arguments", "reason"),
    [
        (_refuse, (), "not here"),
        (os._exit, (7,), "its process ended with exit code 7"),
        (os.abort, (), "its process died by SIGABRT"),
        pytest.param(
            _more_than_is_free, (), "does not fit",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="memory is not limited"),
        ),
    ],
)  # fmt: skip
def test_a_reason_comes_back(call: Any, arguments: tuple[int, ...], reason: str) -> None:
    with pytest.raises(NotMeasured, match=f"^{reason}"):
        run_apart(call, *arguments, threads=1)


def test_a_process_that_hangs_is_stopped() -> None:
    with pytest.raises(NotMeasured, match="stopped after 1 s"):
        run_apart(time.sleep, FOREVER, threads=1, seconds=1)


def test_what_a_stopped_process_has_started_is_stopped_too() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        stop_tree(parent)
        assert parent.stdout.read() == b""  # it ends when no process holds it


@pytest.mark.parametrize("backward", [False, True])
def test_a_peak_counts_what_a_call_returns_and_not_its_inputs(backward: bool) -> None:
    problem = Problem(2**14, backward=backward)  # a tensor has 32 MiB
    peak = run_apart(peak_of_call, "linear (torch)", problem, Settings(threads=1), threads=1)
    tensor = problem.numbers * problem.dtype.itemsize
    results = 4 if backward else 1  # the output, and with the backward pass three gradients
    assert results * tensor - TOLERANCE <= peak < (results + 12) * tensor
