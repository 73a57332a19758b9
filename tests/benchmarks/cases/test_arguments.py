"""Calls with a mask, decay and grouped heads are right before they would be timed."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.cases import arguments
from benchmarks.cases.attention import Call
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import Method, NotMeasured, Settings

PROBLEM = Problem(length=40, heads=8, width=8, backward=True)
SETTINGS = Settings(threads=1)
NAMES = (
    arguments.PLAIN, arguments.MASKED, arguments.FIXED, arguments.TRAINED, arguments.GROUPED,
    arguments.EXPANDED,
)  # fmt: skip


def made(name: str, problem: Problem = PROBLEM) -> Method:
    try:
        return arguments.method(name, problem, SETTINGS)
    except NotMeasured as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_call_passes_its_check(name: str, backward: bool) -> None:
    method = made(name, dataclasses.replace(PROBLEM, backward=backward))
    assert method.check() is None
    method.run()


@pytest.mark.parametrize("name", [arguments.MASKED, arguments.FIXED])
def test_a_call_without_its_argument_fails_the_check(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument reaches the call, and changes what it returns."""
    call = arguments._call

    def without(named: str, problem: Problem, backend: str) -> Call:
        return call(arguments.PLAIN if backend == "cpu" else named, problem, backend)

    monkeypatch.setattr(arguments, "_call", without)
    assert "float64 oracle" in str(made(name).check())
