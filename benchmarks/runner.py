"""Runs cases: makes and checks every method, and measures those that are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from benchmarks.case import Case, Make, Method, Settings
from benchmarks.results import (
    MEASURED,
    NOT_CORRECT,
    RAISED,
    CaseResult,
    MethodResult,
    Ratio,
    spread,
)
from linattn_lab.machine import Limits
from linattn_lab.timing import NotMeasured, interleave, sample, stopwatch
from linattn_models.basics.memory import lacks_memory

QUICK_SECONDS, QUICK_ROUNDS = 0.05, (1, 2)
REFUSED = "refuses this call"  # as linattn_core says it of a backend

Result = TypeVar("Result")
Samples = Mapping[str, Sequence[float]]


def measure_case(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Returns the results of a case; an exception becomes its result, and the others still run."""
    try:
        return guard(partial(run_case, case, settings, limits))
    except NotMeasured as reason:
        return lost_case(case, str(reason))


def run_case(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Returns the results of one case; a method that fails its check has no value.

    Args:
        limits: the machine's, for the shares of them.
    """
    makes = case.setup(settings)
    methods, rows = _make_methods(makes)
    samples, reasons = _time_methods(case, methods, settings)
    rows |= {name: MethodResult(name=name, status=reason) for name, reason in reasons.items()}
    for name, values in samples.items():
        rows[name] = _result(name, methods[name], values, limits, settings)
    *_, last = makes
    pairs = case.ratios if case.series is None else [(last, name) for name in makes]
    return CaseResult(
        shows=case.shows, unit=case.unit, series=case.series, at=case.at,
        methods=tuple(rows[name] for name in makes),
        ratios=tuple(_ratios(pairs, samples)),
    )  # fmt: skip


def lost_case(case: Case, reason: str) -> CaseResult:
    """Returns the result of a case that gave none, with the reason.

    It is in no series: the tables of one compare the same methods at every size.
    """
    methods = (MethodResult(name="every method", status=reason),)
    return CaseResult(shows=case.shows, unit=case.unit, methods=methods)


def guard(call: Callable[[], Result]) -> Result:
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


def _make_methods(
    makes: Mapping[str, Make],
) -> tuple[dict[str, Method], dict[str, MethodResult]]:
    """The methods that passed their checks, and the rows of the others."""
    methods: dict[str, Method] = {}
    rows: dict[str, MethodResult] = {}
    for name, make in makes.items():
        try:
            method = guard(make)
            fault = guard(method.check)
        except NotMeasured as reason:
            rows[name] = MethodResult(name=name, status=str(reason))
            continue
        if fault is None:
            methods[name] = method
        else:
            rows[name] = MethodResult(name=name, status=NOT_CORRECT, detail=fault)
        del method  # frees the inputs of a method that is wrong
    return methods, rows


def _time_methods(
    case: Case, methods: Mapping[str, Method], settings: Settings
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Samples per unit by method, one per round, and why others have none."""
    short = 0 if settings.quick else case.sample_seconds
    seconds = QUICK_SECONDS if settings.quick else case.seconds
    rounds = QUICK_ROUNDS if settings.quick else case.rounds

    def measure(method: Method) -> float:
        if method.measure is not None:
            return method.measure() / method.units
        return sample(method.run, stopwatch(settings.device), short) / method.units

    samplers = {name: partial(guard, partial(measure, each)) for name, each in methods.items()}
    with case.around():
        return interleave(samplers, seconds=seconds, rounds=rounds)


def _result(
    name: str, method: Method, samples: Sequence[float], limits: Limits, settings: Settings
) -> MethodResult:
    value = spread(samples)

    def share(work: float, rate: float | None) -> float | None:
        return work / method.units / value.median / rate if work and rate else None

    return MethodResult(
        name=name,
        status=MEASURED,
        value=value,
        rounds=len(samples),
        units=method.units,
        share_of_gemm=share(method.operations, limits.gemm(settings.device)),
        share_of_fma=share(method.operations, limits.fma_float32),
        share_of_copy=share(method.traffic, limits.copy_bandwidth),
        peak=_peak(method),
        note=method.note,
        figures=dict(method.figures),
    )


def _peak(method: Method) -> float | None:
    try:
        return None if method.peak is None else guard(method.peak)
    except NotMeasured:
        return None


def _ratios(pairs: Sequence[tuple[str, str]], samples: Samples) -> list[Ratio]:
    """Round by round: both halves of each ratio saw the same state of the machine."""
    return [
        Ratio(
            numerator=above,
            denominator=below,
            value=spread([a / b for a, b in zip(samples[above], samples[below], strict=True)]),
        )
        for above, below in pairs
        if above in samples and below in samples
    ]
