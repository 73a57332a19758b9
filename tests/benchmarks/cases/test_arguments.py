"""Calls with a mask, decay and grouped heads are right before they would be timed."""

from __future__ import annotations

import dataclasses

import pytest
from torch import Tensor

from benchmarks.cases import arguments
from benchmarks.cases.attention import Call
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import Method, NotMeasured, Settings

PROBLEM = Problem(length=40, heads=8, width=8, backward=True)
FORWARD = dataclasses.replace(PROBLEM, backward=False)
SETTINGS = Settings(threads=1)
NAMES = (
    arguments.PLAIN, arguments.MASKED, arguments.FIXED, arguments.TRAINED, arguments.GROUPED,
    arguments.EXPANDED,
)  # fmt: skip


def made(name: str, problem: Problem) -> Method:
    try:
        return arguments.method(name, problem, SETTINGS)
    except NotMeasured as reason:
        pytest.skip(str(reason))


def replaced(name: str, problem: Problem, call: Call, patch: pytest.MonkeyPatch) -> Method:
    """The method with another call in place of the one that is measured; the oracle stays."""
    own = arguments._call

    def either(named: str, asked: Problem, backend: str) -> Call:
        return call if backend == "cpu" else own(named, asked, backend)

    patch.setattr(arguments, "_call", either)
    return made(name, problem)


@pytest.mark.parametrize("problem", [FORWARD, PROBLEM], ids=["forward", "both passes"])
@pytest.mark.parametrize("name", NAMES)
def test_every_call_passes_its_check(name: str, problem: Problem) -> None:
    method = made(name, problem)
    assert method.check() is None
    method.run()


@pytest.mark.parametrize("name", [arguments.MASKED, arguments.FIXED, arguments.TRAINED])
def test_a_call_without_its_argument_fails_the_check(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument reaches the call, and changes what it returns."""
    plain = arguments._call(arguments.PLAIN, FORWARD, "cpu")

    def without(query: Tensor, key: Tensor, value: Tensor, *decay: Tensor) -> Tensor:
        return plain(query, key, value)

    fault = replaced(name, FORWARD, without, monkeypatch).check()
    assert "of the output differ from the float64 oracle" in str(fault)


def test_a_wrong_gradient_of_a_trained_decay_fails_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attend = arguments._call(arguments.TRAINED, PROBLEM, "cpu")

    def doubled(query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Tensor:
        """The right output, and twice the gradient of the decay."""
        return attend(query, key, value, 2 * decay - decay.detach())

    fault = replaced(arguments.TRAINED, PROBLEM, doubled, monkeypatch).check()
    assert "of the log_decay gradient differ from the float64 oracle" in str(fault)
