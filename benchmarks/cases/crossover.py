"""Where linear attention begins to win: forward and forward with backward, N = 64 to 8,192."""

from __future__ import annotations

from benchmarks.cases.attention import LINEAR, LINEAR_CPU, SDPA, Problem, method
from benchmarks.cases.operator import PASSES
from benchmarks.registry import Absent, Case, Method, Settings, registry

LENGTHS = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
QUICK_LENGTH = 8
METHODS = (LINEAR_CPU, LINEAR, SDPA)


def _setup(length: int, backward: bool, settings: Settings) -> list[Method | Absent]:
    problem = Problem(QUICK_LENGTH if settings.quick else length)
    return [method(name, problem, backward=backward, settings=settings) for name in METHODS]


def _case(length: int, backward: bool) -> Case:
    return Case(
        f"crossover/{PASSES[backward].replace(' ', '-')}/{length}",
        shows=f"Linear against softmax SDPA, causal, {PASSES[backward]}, N={length:,} "
        "(B=1, H=8, D=M=64, float32).",
        setup=lambda settings: _setup(length, backward, settings),
        seconds=3 if length < 4_096 else 10,
        series=f"causal {PASSES[backward]}",
        at=length,
    )


for _backward in (False, True):
    for _length in LENGTHS:
        registry.add(_case(_length, _backward))
