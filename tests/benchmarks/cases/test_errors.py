"""The errors of a backend over those of the reference."""

from __future__ import annotations

from benchmarks.cases.errors import NAMES, error_method
from benchmarks.cases.problem import Problem


def test_the_reference_has_its_own_errors() -> None:
    method = error_method("reference", Problem(100, heads=1, width=8, backward=True))
    assert method.check() is None
    kinds = ("mean", "largest")
    assert method.figures == {f"{name}, {kind}": 1.0 for name in NAMES for kind in kinds}
