"""Things that the benchmark tests share: a clock that only tests move, and small cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from benchmarks.gpu.probe import Gpu
from benchmarks.machine import Limits
from benchmarks.registry import Case, Method, Settings, Target


class FakeClock:
    """Seconds that pass only when a method says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def method(self, name: str, *durations: float, **fields: object) -> Method:
        """A method whose calls take these durations in turn, the last one for ever after."""
        left = list(durations)

        def run() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return dataclasses.replace(Method(name, check=lambda: None, run=run), **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def new_clock() -> type[FakeClock]:
    """Makes clocks, for tests that hypothesis calls many times."""
    return FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """Builds a case whose methods report fixed values by name, without any clock."""

    def make(values: dict[str, float], **fields: object) -> Case:
        def setup(_: Settings) -> list[Method]:
            return [
                Method(name, check=lambda: None, measure=lambda value=value: value)  # type: ignore[misc]
                for name, value in values.items()
            ]

        usual: dict[str, object] = {"rounds": (3, 3), "shows": "A fixed case."}
        return Case("fixed/case", setup=setup, **{**usual, **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture
def twice_as_fast() -> Target:
    return Target("times faster than slow", "slow", "fast", at_least=2)


class FakeInstrument:
    """A GPU that tests hold in their hands: each call takes a second and a byte."""

    device = "cpu"

    def __init__(self, *, dies: bool = False) -> None:
        self.dies = dies

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        return 1.0

    def peak(self, run: Callable[[], object]) -> float:
        run()
        return 1.0

    def limits(self) -> Limits:
        return Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8)

    def alive(self) -> bool:
        return not self.dies


@pytest.fixture
def new_instrument() -> type[FakeInstrument]:
    return FakeInstrument


@pytest.fixture
def gpu() -> Gpu:
    return Gpu("NVIDIA H200", "9.0", 132, 139.8, 60 * 2**20, "580.1", "13.0")
