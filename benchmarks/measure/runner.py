"""Runs cases: makes and checks every method, and measures those that are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from benchmarks.measure import results
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings
from benchmarks.measure.machine import Limits
from benchmarks.measure.results import RAISED, CaseResult, MethodResult, Spread, Target
from benchmarks.measure.timer import interleave, sample, stopwatch
from linattn_models.memory import lacks_memory

QUICK_SECONDS, QUICK_ROUNDS = 0.05, (1, 2)
REFUSED = "refuses this call"  # as linattn_core says it of a backend

Result = TypeVar("Result")
Samples = Mapping[str, Sequence[float]]


def measured(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Returns the results of a case; an exception becomes its result, and the others still run."""
    try:
        return guarded(partial(run_case, case, settings, limits))
    except NotMeasured as reason:
        return unmeasured(case, str(reason))


def run_case(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Returns the results of one case; a method that fails its check has no value.

    Args:
        limits: the machine's, for the shares of them.
    """
    makes = case.setup(settings)
    methods, rows = _checked(makes)
    samples, refused = _timed(case, methods, settings)
    rows |= {name: MethodResult(name, reason) for name, reason in refused.items()}
    rival = samples.get(list(makes)[-1]) if case.series is not None else None
    for name, taken in samples.items():
        rows[name] = _result(name, methods[name], taken, rival, limits, settings.device)
    targets = tuple(_target(target, rows, samples, settings.quick) for target in case.targets)
    return CaseResult(case.description, tuple(rows[name] for name in makes), targets)


def unmeasured(case: Case, reason: str) -> CaseResult:
    """Returns the result of a case that gave none, with the reason.

    It is in no series: the tables of one compare the same methods at every size.
    """
    description = dataclasses.replace(case.description, series=None, at=None)
    methods = (MethodResult("every method", reason),)
    return CaseResult(description, methods, tuple(map(results.TargetResult, case.targets)))


def guarded(call: Callable[[], Result]) -> Result:
    """Returns what the call does, or raises the reason why the method cannot be measured."""
    try:
        return call()
    except NotMeasured:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise NotMeasured("does not fit: no more memory could be allocated") from None
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        refused = isinstance(error, ValueError) and REFUSED in words
        raise NotMeasured(words if refused else f"{RAISED} {words}") from error


def _checked(makes: Mapping[str, Make]) -> tuple[dict[str, Method], dict[str, MethodResult]]:
    """The methods that passed their checks, and the rows of the others."""
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
            rows[name] = MethodResult(name, results.NOT_CORRECT, detail=fault)
        del made  # frees the inputs of a method that is wrong
    return methods, rows


def _timed(
    case: Case, methods: Mapping[str, Method], settings: Settings
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Samples per unit by method, one per round, and why others have none."""
    short = 0 if settings.quick else case.sample_seconds
    seconds = QUICK_SECONDS if settings.quick else case.seconds
    rounds = QUICK_ROUNDS if settings.quick else case.rounds

    def sampled(method: Method) -> float:
        if method.measure is not None:
            return method.measure() / method.units
        return sample(method.run, stopwatch(settings.device), short) / method.units

    samplers = {name: partial(guarded, partial(sampled, made)) for name, made in methods.items()}
    with case.around():
        return interleave(samplers, seconds=seconds, rounds=rounds)


def _result(
    name: str, made: Method, samples: Sequence[float], rival: Sequence[float] | None,
    limits: Limits, device: str,
) -> MethodResult:  # fmt: skip
    return MethodResult(
        name,
        results.MEASURED,
        value=results.spread(samples),
        rounds=len(samples),
        units=made.units,
        over_last=None if rival is None else results.ratio(rival, samples),
        share_of_gemm=_share(made.operations / made.units, limits.gemm(device), samples),
        share_of_fma=_share(made.operations / made.units, limits.fma_float32, samples),
        share_of_copy=_share(made.traffic / made.units, limits.copy_bandwidth, samples),
        peak=_peak(made),
        note=made.note,
    )


def _peak(made: Method) -> float | None:
    try:
        return None if made.peak is None else guarded(made.peak)
    except NotMeasured:
        return None


def _share(work: float, rate: float | None, samples: Sequence[float]) -> Spread | None:
    return results.spread([work / rate / each for each in samples]) if work and rate else None


def _target(
    target: Target, rows: Mapping[str, MethodResult], samples: Samples, quick: bool
) -> results.TargetResult:
    value = _reading(target, rows[target.numerator], samples)
    reached = None if value is None or quick else target.reached(value.median)
    return results.TargetResult(target, value, reached)


def _reading(target: Target, row: MethodResult, samples: Samples) -> Spread | None:
    if target.denominator is not None:
        if not set(target.methods) <= set(samples):
            return None
        return results.ratio(samples[target.numerator], samples[target.denominator])
    peak = None if row.peak is None else results.spread([row.peak])
    values = {
        "gemm": row.share_of_gemm, "fma": row.share_of_fma, "copy": row.share_of_copy, "peak": peak,
    }  # fmt: skip
    return values.get(target.figure, row.value)
