"""A call in a process of its own gives its answer, or the reason why there is none."""

from __future__ import annotations

import functools
import operator
import os
import time
from typing import Any

import pytest

from benchmarks.cases.methods import make_call
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import NotMeasured, Settings
from benchmarks.measure.processes import apart, peak_apart

MIB = 2**20
TOLERANCE = 2 * MIB  # the interpreter's own needs, and the kernel's counters per CPU


def _refuse() -> None:
    raise NotMeasured("not here")


def test_an_answer_comes_back() -> None:
    assert apart(operator.add, "a", "b", threads=1) == "ab"


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
    assert time.monotonic() - started < 60


def test_what_a_call_returns_counts_and_its_inputs_do_not() -> None:
    half = b"x" * (32 * MIB)
    arguments, tiny = (operator.add, half, half), (operator.add, b"", b"")
    peak = peak_apart(functools.partial, arguments, tiny=tiny, threads=1)
    assert peak == pytest.approx(64 * MIB, abs=TOLERANCE)


def test_scratch_that_is_freed_before_the_call_returns_counts() -> None:
    scratch = f"len(b'x' * {48 * MIB})"
    peak = peak_apart(functools.partial, (eval, scratch), tiny=(eval, "0"), threads=1)
    assert peak == pytest.approx(48 * MIB, abs=TOLERANCE)


@pytest.mark.parametrize("backward", [False, True])
def test_a_peak_counts_outputs_and_gradients(backward: bool) -> None:
    call = make_call("softmax SDPA", Problem(32, backward=backward), Settings(threads=1))
    result: Any = call()
    tensors = result if backward else (result,)
    assert [tuple(tensor.shape) for tensor in tensors] == [(1, 8, 32, 64)] * (3 if backward else 1)
