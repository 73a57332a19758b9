"""Figure 1 of the paper: time and peak memory of a sample against its length, for every rival."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from benchmarks.cases.attention import (
    LINEAR,
    LINEAR_CPU,
    MATERIALIZED,
    SDPA,
    least_bytes,
    method,
)
from benchmarks.cases.lsh import LSH_ROUNDS
from benchmarks.cases.memory import peak
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.ledger import Ledger
from benchmarks.measure.results import CaseResult, Target

METHODS = (LINEAR_CPU, LINEAR, *LSH_ROUNDS, MATERIALIZED, SDPA)
LENGTHS = tuple(2**power for power in range(9, 17))
# As many positions at every length that has room for more than one sample.
POSITIONS, WIDTH = 8_192, 32
QUICK_LENGTH = 64
LSH_FASTER_AT, LSH_FASTER = 16_384, 3  # than softmax, so that LSH is a serious rival
SHORT_SECONDS = 0.3


def problem_of(length: int, settings: Settings) -> Problem:
    """The heads of the paper's MNIST model; the batch shrinks as the length grows."""
    if settings.quick:
        return Problem(QUICK_LENGTH, batch=2, heads=2, width=8)
    return Problem(length, batch=max(1, POSITIONS // length), width=WIDTH)


def _case(length: int) -> Case:
    lsh = (Target.faster("lsh-1", SDPA, LSH_FASTER),) if length == LSH_FASTER_AT else ()
    return Case(
        f"lengths/{length}",
        shows=f"Causal attention, forward and backward, N={length:,}: time and peak resident "
        "memory of a sample (H=8, D=M=32, float32).",
        setup=functools.partial(_setup, length),
        targets=lsh,
        unit="sample",
        seconds=10,
        rounds=(1, 5),
        short_seconds=SHORT_SECONDS,
        series="causal, forward and backward, H=8, D=M=32, float32, per sample",
        at=length,
    )


def _setup(length: int, settings: Settings, earlier: Sequence[CaseResult]) -> dict[str, Make]:
    ledger = Ledger(earlier, settings, memory_growth={MATERIALIZED: 2})
    return {name: functools.partial(_method, name, length, settings, ledger) for name in METHODS}


def _method(name: str, length: int, settings: Settings, ledger: Ledger) -> Method:
    problem = problem_of(length, settings)
    ledger.require(name, length, problem.batch, least_bytes(name, problem))
    made = method(name, problem, settings, backward=True, units=problem.batch)
    # A quick run does not start a process for every method of every length.
    if settings.quick and length != LENGTHS[0]:
        return made
    return dataclasses.replace(made, peak=lambda: peak(name, problem, True, settings))


for _length in LENGTHS:
    registry.add(_case(_length))
