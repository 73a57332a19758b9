"""Where linear attention begins to win: forward and forward with backward, N = 128 to 8,192."""

from __future__ import annotations

from benchmarks.cases.attention import LINEAR, SDPA, Sizes, method
from benchmarks.cases.operator import PASSES
from benchmarks.registry import Absent, Case, Method, Settings, registry

LENGTHS = (128, 256, 512, 1_024, 2_048, 4_096, 8_192)
QUICK_LENGTH = 8


def _setup(length: int, backward: bool, settings: Settings) -> list[Method | Absent]:
    sizes = Sizes(QUICK_LENGTH if settings.quick else length)
    return [method(name, sizes, backward=backward, settings=settings) for name in (LINEAR, SDPA)]


def _case(length: int, backward: bool) -> Case:
    return Case(
        f"crossover/{PASSES[backward].replace(' ', '-')}/{length}",
        shows=f"Linear against softmax SDPA, causal, {PASSES[backward]}, N={length:,} "
        "(B=1, H=8, D=M=64, float32).",
        setup=lambda settings: _setup(length, backward, settings),
        seconds=4 if length < 4_096 else 15,
        series=f"causal {PASSES[backward]}",
        at=length,
    )


for _backward in (False, True):
    for _length in LENGTHS:
        registry.add(_case(_length, _backward))
