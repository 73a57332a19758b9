"""What limits a call: parts of it are right before they would be timed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from benchmarks.cases import limits
from benchmarks.cases.problem import Problem, passes
from benchmarks.measure.cases import Method, NotMeasured, Settings

PROBLEM = Problem(length=40, heads=2, width=8)
SETTINGS = Settings(threads=1)


@pytest.mark.parametrize("problem", passes(PROBLEM), ids=["forward", "both passes"])
@pytest.mark.parametrize("name", [limits.LINEAR_CPU, limits.IDENTITY, limits.SHORTEST])
def test_every_call_passes_its_check(name: str, problem: Problem) -> None:
    try:
        method = limits.call_of(name, problem, SETTINGS)
    except NotMeasured as reason:
        pytest.skip(str(reason))
    assert method.check() is None
    method.run()


def written(method: Method) -> list[Tensor]:
    tensors = method.run()
    assert isinstance(tensors, list)
    return tensors


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", [limits.NEW, limits.USED])
def test_writing_covers_the_output_and_every_gradient(name: str, backward: bool) -> None:
    problem = dataclasses.replace(PROBLEM, backward=backward)
    method = limits.writes_of(name, problem, SETTINGS)
    assert method.check() is None
    assert sum(x.numel() for x in written(method)) == (4 if backward else 1) * problem.numbers
    assert method.traffic == sum(x.nbytes for x in written(method))


def test_used_memory_is_the_same_and_new_memory_is_not() -> None:
    used, new = (limits.writes_of(name, PROBLEM, SETTINGS) for name in (limits.USED, limits.NEW))
    assert written(used)[0] is written(used)[0]
    first = written(new)[0]
    assert written(new)[0].data_ptr() != first.data_ptr()


def test_a_number_that_is_not_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    method = limits.writes_of(limits.NEW, PROBLEM, SETTINGS)
    monkeypatch.setattr(torch.Tensor, "fill_", lambda self, value: self.zero_())
    assert method.check() == "a number is not written"
