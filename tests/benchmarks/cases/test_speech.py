"""Recognizers: what represents an epoch, and methods that are right or are told."""

from __future__ import annotations

import pytest

from benchmarks.cases import speech
from tests.benchmarks.helpers import QUICK, make_or_skip

CASES = [case for case in speech.CASES if case.device == "cpu"]


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case.name)
def test_methods_are_right_and_can_be_repeated(case: speech.Case) -> None:
    for make in case.setup(QUICK).values():
        made = make_or_skip(make)
        assert made.check() is None
        made.run()
        made.run()
