"""A call in a process of its own gives its answer, or the reason why there is none."""

from __future__ import annotations

import operator
import os
import resource
import time
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.cases.attention import MATERIALIZED
from benchmarks.cases.methods import peak_of_call
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import NotMeasured, Settings
from benchmarks.measure.processes import apart
from benchmarks.measure.runner import guarded

MIB = 2**20
TOLERANCE = 2 * MIB  # the interpreter's own needs, and the kernel's counters per CPU


def _refuse() -> None:
    raise NotMeasured("not here")


def _more_than_is_free() -> object:
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return guarded(partial(torch.empty, most + 1, dtype=torch.uint8)).nbytes


def test_an_answer_comes_back() -> None:
    assert apart(operator.add, "a", "b", threads=1) == "ab"


def test_what_a_call_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert apart(os.system, "echo printed", threads=1) == 0
    assert capfd.readouterr().err == "printed\n"


def test_a_call_that_needs_more_than_is_free_says_so() -> None:
    with pytest.raises(NotMeasured, match="does not fit"):
        apart(_more_than_is_free, threads=1)


def test_a_reason_comes_back() -> None:
    with pytest.raises(NotMeasured, match="not here"):
        apart(_refuse, threads=1)


@pytest.mark.parametrize(
    ("call", "argument", "words"),
    [(os._exit, 7, "ended with exit code 7"), (os.abort, None, "died by SIGABRT")],
)
def test_a_process_that_dies_says_how(call: Any, argument: Any, words: str) -> None:
    arguments = () if argument is None else (argument,)
    with pytest.raises(NotMeasured, match=f"its process {words}"):
        apart(call, *arguments, threads=1)


def test_a_process_that_hangs_is_stopped() -> None:
    started = time.monotonic()
    with pytest.raises(NotMeasured, match="stopped after 1 s"):
        apart(time.sleep, 600, threads=1, seconds=1)
    assert time.monotonic() - started < 300


@pytest.mark.parametrize("backward", [False, True])
def test_a_peak_counts_what_a_call_returns_and_not_its_inputs(backward: bool) -> None:
    problem = Problem(2**14, backward=backward)  # a tensor has 32 MiB
    peak = apart(peak_of_call, "linear (torch)", problem, Settings(threads=1), threads=1)
    tensor = problem.numbers * problem.dtype.itemsize
    results = 4 if backward else 1  # the output, and with the backward pass three gradients
    assert results * tensor - TOLERANCE <= peak < (results + 12) * tensor


def test_a_peak_counts_scratch_that_is_freed_before_the_call_returns() -> None:
    problem = Problem(2_048, heads=1, width=8)
    peak = apart(peak_of_call, MATERIALIZED, problem, Settings(threads=1), threads=1)
    assert peak >= problem.length**2 * problem.dtype.itemsize - TOLERANCE
