"""Runs cases: makes and checks every method, and measures those that are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings
from benchmarks.measure.machine import Limits
from benchmarks.measure.results import (
    MEASURED,
    NOT_CORRECT,
    RAISED,
    CaseResult,
    MethodResult,
    Spread,
    Target,
    TargetResult,
    ratio,
    spread,
)
from benchmarks.measure.timer import interleave, sample, stopwatch
from linattn_models.throughput import lacks_memory

QUICK_SECONDS, QUICK_ROUNDS = 0.05, (1, 2)
REFUSED = "refuses this call"  # as linattn_core says it of a backend

Result = TypeVar("Result")
Samples = Mapping[str, Sequence[float]]


def run_case(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Returns the figures of one case; a method that fails its check gets none.

    Args:
        limits: the machine's, for the shares of them.
    """
    makes = case.setup(settings)
    methods, rows = _checked(makes)
    samples, refused = _timed(case, methods, settings)
    rows |= {name: MethodResult(name, reason) for name, reason in refused.items()}
    rival = samples.get(list(makes)[-1]) if case.series is not None else None
    for name, taken in samples.items():
        rows[name] = _measured(name, methods[name], taken, rival, limits, settings)
    targets = tuple(_target(target, rows, samples, settings.quick) for target in case.targets)
    return CaseResult(case.description, tuple(rows[name] for name in makes), targets)


def unmeasured(case: Case, reason: str) -> CaseResult:
    """Returns the result of a case that gave none: each method that it promises says why.

    It leaves its series, whose tables compare methods that were at least looked for.
    """
    names = [name for target in case.targets for name in target.methods] or ["every method"]
    return CaseResult(
        dataclasses.replace(case.description, series=None, at=None),
        tuple(MethodResult(name, reason) for name in dict.fromkeys(names)),
        tuple(TargetResult(target) for target in case.targets),
    )


def guarded(call: Callable[[], Result]) -> Result:
    """Returns what the call does, or raises the reason why the method cannot be measured."""
    try:
        return call()
    except NotMeasured:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        if lacks_memory(error):
            raise NotMeasured("does not fit: no more memory could be allocated") from None
        refused = isinstance(error, ValueError) and REFUSED in words
        raise NotMeasured(words if refused else f"{RAISED} {words}") from error


def _checked(
    makes: Mapping[str, Make],
) -> tuple[dict[str, Method], dict[str, MethodResult]]:
    """The methods that are right, and the rows of those that are not or are not here."""
    methods: dict[str, Method] = {}
    rows: dict[str, MethodResult] = {}
    for name, make in makes.items():
        try:
            made = guarded(make)
            fault = guarded(made.check)
        except NotMeasured as reason:
            rows[name] = MethodResult(name, str(reason))
            continue
        if fault is None:
            methods[name] = made
        else:
            rows[name] = MethodResult(name, NOT_CORRECT, detail=fault)
        del made  # frees the inputs of a method that is wrong
    return methods, rows


def _timed(
    case: Case, methods: Mapping[str, Method], settings: Settings
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Samples per unit by method, one a round, and why others have none."""
    seconds = 0 if settings.quick else case.sample_seconds

    def sampled(method: Method) -> float:
        if method.measure is not None:
            return method.measure() / method.units
        return sample(method.run, stopwatch(settings.device), seconds) / method.units

    return interleave(
        {name: partial(guarded, partial(sampled, made)) for name, made in methods.items()},
        seconds=QUICK_SECONDS if settings.quick else case.seconds,
        rounds=QUICK_ROUNDS if settings.quick else case.rounds,
    )


def _measured(
    name: str,
    made: Method,
    samples: Sequence[float],
    rival: Sequence[float] | None,
    limits: Limits,
    settings: Settings,
) -> MethodResult:
    return MethodResult(
        name,
        MEASURED,
        value=spread(samples),
        rounds=len(samples),
        units=made.units,
        over_last=None if rival is None else ratio(rival, samples),
        share_of_gemm=_share(made.operations / made.units, limits.gemm(settings.device), samples),
        share_of_copy=_share(made.traffic / made.units, limits.copy_bandwidth, samples),
        peak=_peak(made),
        estimated=made.estimated,
        note=made.note,
    )


def _peak(made: Method) -> float | None:
    try:
        return None if made.peak is None else guarded(made.peak)
    except NotMeasured:
        return None


def _share(work: float, rate: float | None, samples: Sequence[float]) -> Spread | None:
    return spread([work / rate / each for each in samples]) if work and rate else None


def _target(
    target: Target, rows: Mapping[str, MethodResult], samples: Samples, quick: bool
) -> TargetResult:
    value = _figure(target, rows[target.numerator], samples)
    reached = None if value is None or quick else target.reached(value.median)
    return TargetResult(target, value, reached)


def _figure(target: Target, row: MethodResult, samples: Samples) -> Spread | None:
    if target.denominator is not None:
        if not set(target.methods) <= set(samples):
            return None
        return ratio(samples[target.numerator], samples[target.denominator])
    peak = None if row.peak is None else spread([row.peak])
    figures = {"gemm": row.share_of_gemm, "copy": row.share_of_copy, "peak": peak}
    return figures.get(target.figure, row.value)
