"""Ragged prompts give the same predictions at once and in steps, and a wrong one is told."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import prompts
from benchmarks.cases.models import Task
from benchmarks.measure.cases import Method, NotMeasured, Settings
from linattn_models import AutoregressiveTransformer

QUICK = Settings(quick=True, threads=1)


def made(name: str, how: str) -> Method:
    try:
        return prompts.method(name, how, Task(), QUICK)
    except NotMeasured as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("how", [prompts.AT_ONCE, prompts.IN_STEPS])
@pytest.mark.parametrize("name", [prompts.LINEAR, prompts.COMPILED])
def test_each_way_is_right(name: str, how: str) -> None:
    assert made(name, how).check() is None


def test_lengths_that_are_ignored_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = AutoregressiveTransformer.prefill

    def whole(
        self: AutoregressiveTransformer, tokens: torch.Tensor, lengths: object = None
    ) -> object:
        return prefill(self, tokens)

    method = made(prompts.LINEAR, prompts.AT_ONCE)
    monkeypatch.setattr(AutoregressiveTransformer, "prefill", whole)
    assert "float64 oracle" in str(method.check())
