"""Things that the benchmark tests share: a clock that only tests move, and small cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.measure.cases import Case, Method, NotMeasured
from benchmarks.measure.machine import Limits
from benchmarks.measure.results import Target


class FakeClock:
    """Seconds that pass only when a call says so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[str] = []

    def now(self) -> float:
        return self.seconds

    def timed(self, run: Callable[[], object]) -> float:
        before = self.seconds
        run()
        return self.seconds - before

    def call(self, name: str, *durations: float) -> Callable[[], float]:
        """A call that takes these durations in turn, and then always the last one."""
        left = list(durations)

        def run() -> float:
            self.calls.append(name)
            duration = left.pop(0) if len(left) > 1 else left[0]
            self.seconds += duration
            return duration

        return run


@pytest.fixture(scope="session")
def new_clock() -> type[FakeClock]:
    """Makes clocks, for tests that hypothesis calls many times."""
    return FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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


@pytest.fixture
def twice_as_fast() -> Target:
    return Target("times faster than slow", "slow", "fast", at_least=2)
