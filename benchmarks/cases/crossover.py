"""From which length on linear attention wins: forward and backward, many widths and heads."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from benchmarks.cases.attention import least_bytes, method
from benchmarks.cases.lengths import METHODS, SHORT_SECONDS
from benchmarks.cases.problem import Problem, sized
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings, registry
from benchmarks.measure.ledger import Ledger
from benchmarks.measure.results import CaseResult

WIDTHS, HEADS = (32, 64, 128), (1, 8, 64)
LENGTHS = (64, 128, 256, 512, 1_024, 2_048, 4_096)
MOST_SECONDS = 15.0  # of a call
CLEARLY, TIMES = 4.0, 2  # so many times as slow at so many lengths: the rest is known
OUT = f"not measured: {CLEARLY:g} times as slow as linear at {TIMES} lengths before"


def clear_losers(earlier: Sequence[CaseResult]) -> set[str]:
    """The methods that were clearly slower than linear at several lengths in succession."""
    losses: dict[str, int] = {}
    for result in earlier:
        linear = [m.seconds for m in result.methods if m.name.startswith("linear") and m.seconds]
        for found in result.methods:
            if linear and found.seconds is not None:
                lost = found.seconds >= CLEARLY * min(linear)
                losses[found.name] = losses.get(found.name, 0) + 1 if lost else 0
    return {name for name, times in losses.items() if times >= TIMES}


def _case(problem: Problem) -> Case:
    width, heads, length = problem.width, problem.heads, problem.length
    return Case(
        f"crossover/d{width}-h{heads}/{length}",
        shows=f"Causal attention, forward and backward, {problem}.",
        setup=functools.partial(_setup, problem),
        seconds=1.0,
        rounds=(1, 3),
        short_seconds=SHORT_SECONDS,
        series=f"D=M={width}, H={heads}",
        at=length,
        summarized=True,
    )


def _setup(asked: Problem, settings: Settings, earlier: Sequence[CaseResult]) -> dict[str, Make]:
    ledger = Ledger(earlier, settings, most_seconds=MOST_SECONDS)
    problem, out = sized(asked, settings), clear_losers(earlier)

    def make(name: str) -> Method:
        if name in out:
            raise NotMeasured(OUT)
        ledger.require(name, asked.length, 1, least_bytes(name, problem))
        return method(name, problem, settings, backward=True)

    return {name: functools.partial(make, name) for name in METHODS}


for _width in WIDTHS:
    for _heads in HEADS:
        for _length in LENGTHS:
            registry.add(_case(Problem(_length, heads=_heads, width=_width)))
