"""Small cases, and what the benchmark tests run them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from benchmarks.case import Case, Method, Settings
from linattn_lab.machine import Limits
from linattn_lab.timing import NotMeasured
from linattn_models import AutoregressiveTransformer

LIMITS = Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8, fma_float32=2e9)
QUICK = Settings(quick=True, peers=True, threads=1)


def fixed(seconds: float, **fields: Any) -> Method:
    """A right method that takes so many seconds."""
    return Method(lambda: None, measure=lambda: seconds, **fields)


def make_case(methods: Mapping[str, float | str | Method], **fields: Any) -> Case:
    """A case of methods, seconds of methods, and reasons why there is none."""

    def make(value: float | str | Method) -> Method:
        if isinstance(value, str):
            raise NotMeasured(value)
        return value if isinstance(value, Method) else fixed(value)

    made = {name: lambda value=value: make(value) for name, value in methods.items()}  # type: ignore[misc]
    usual: dict[str, Any] = {
        "name": "fixed/case", "shows": "A fixed case.", "setup": lambda settings: made,
        "rounds": (2, 2),
    }  # fmt: skip
    return Case(**{**usual, **fields})


def make_or_skip(make: Callable[[], Method]) -> Method:
    """The method, or a skipped test where it is absent."""
    try:
        return make()
    except NotMeasured as reason:
        pytest.skip(str(reason))


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def call(*_: object) -> Any:
        raise error

    return call


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets models step without what came before."""
    step = AutoregressiveTransformer.step

    def forgetful(model: AutoregressiveTransformer, token: Tensor, state: Any) -> Any:
        for layer in state.layers:
            layer.s.zero_()
            layer.z.zero_()
        return step(model, token, state)

    monkeypatch.setattr(AutoregressiveTransformer, "step", forgetful)
