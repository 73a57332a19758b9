"""Figure 1 of the paper: time and peak memory of a sample against its length, for every rival."""

from __future__ import annotations

import dataclasses

from benchmarks.cases.attention import (
    LINEAR,
    LINEAR_CPU,
    MATERIALISED,
    SDPA,
    Problem,
    least_bytes,
    method,
    per_sample,
)
from benchmarks.cases.lsh import LSH_ROUNDS
from benchmarks.cases.memory import peak
from benchmarks.growth import SAMPLE
from benchmarks.ledger import Ledger
from benchmarks.registry import Absent, Case, Method, Registry, Settings, Target, registry
from benchmarks.timer import typical_seconds

METHODS = (LINEAR_CPU, LINEAR, *LSH_ROUNDS, MATERIALISED, SDPA)
LENGTHS = tuple(2**power for power in range(9, 17))
# As many positions at every length that has room for more than one sample.
POSITIONS, WIDTH = 8_192, 32
QUICK_LENGTH = 64
LSH_FASTER_AT, LSH_FASTER = 16_384, 3  # than softmax: a rival that is no straw man
SHORT_CALL_SECONDS = 0.3  # that the calls of a fast method take in a round


def register(registry: Registry) -> None:
    """Adds the case of each length; they share what was measured at the lengths before."""
    ledger = Ledger(memory_growth={MATERIALISED: 2})
    for length in LENGTHS:
        registry.add(_case(length, ledger))


def problem_of(length: int, settings: Settings) -> Problem:
    """The heads of the paper's MNIST model; the batch shrinks as the length grows."""
    if settings.quick:
        return Problem(QUICK_LENGTH, batch=2, heads=2, width=8)
    return Problem(length, batch=max(1, POSITIONS // length), width=WIDTH)


def _case(length: int, ledger: Ledger) -> Case:
    return Case(
        f"lengths/{length}",
        shows=f"Causal attention, forward and backward, N={length:,}: time and peak resident "
        "memory of a sample (H=8, D=M=32, float32).",
        setup=lambda settings: [_method(name, length, settings, ledger) for name in METHODS],
        targets=_targets(length),
        unit=SAMPLE,
        seconds=10,
        rounds=(1, 5),
        series="causal, forward and backward, H=8, D=M=32, float32, per sample",
        at=length,
        done=ledger.note,
    )


def _targets(length: int) -> tuple[Target, ...]:
    return (Target.faster("lsh-1", SDPA, LSH_FASTER),) if length == LSH_FASTER_AT else ()


def _method(name: str, length: int, settings: Settings, ledger: Ledger) -> Method | Absent:
    problem = problem_of(length, settings)
    made = timed_by_itself(method(name, problem, backward=True, settings=settings), settings)
    if isinstance(made, Absent):
        return made
    # A quick run does not start a process for every method of every length.
    if not settings.quick or length == LENGTHS[0]:
        made = dataclasses.replace(made, peak=lambda: peak(name, problem, True, settings))
    return ledger.guarded(
        per_sample(made, problem.batch), length, settings, least_bytes(name, problem)
    )


def timed_by_itself(made: Method | Absent, settings: Settings) -> Method | Absent:
    """Returns the method with as many calls in a round as are worth their time: one if long."""
    if isinstance(made, Absent):
        return made
    run, seconds = made.run, 0.0 if settings.quick else SHORT_CALL_SECONDS
    assert run is not None  # the operators are timed, they do not measure themselves
    return dataclasses.replace(
        made, run=None, measure=lambda: typical_seconds(run, seconds=seconds)
    )


register(registry)
