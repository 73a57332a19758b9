"""Things that the benchmark tests share: limits, and small cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.case import Case, Method
from linattn_lab.machine import Limits
from linattn_lab.timing import NotMeasured


@pytest.fixture
def limits() -> Limits:
    return Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8, fma_float32=2e9)


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """Builds a case whose methods report fixed values by name, or a reason why there is none."""

    def make(values: dict[str, float | str], **fields: object) -> Case:
        def method(value: float | str) -> Method:
            if isinstance(value, str):
                raise NotMeasured(value)
            return Method(lambda: None, measure=lambda: value)

        made = {name: lambda value=value: method(value) for name, value in values.items()}  # type: ignore[misc]
        usual: dict[str, object] = {
            "name": "fixed/case", "rounds": (3, 3), "shows": "A fixed case.",
            "setup": lambda settings: made,
        }  # fmt: skip
        return Case(**{**usual, **fields})  # type: ignore[arg-type]

    return make
