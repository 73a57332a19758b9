"""Runs cases: makes and checks every method, and measures those that are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

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
from benchmarks.measure.timer import interleave, timer
from linattn_core.errors import expected
from linattn_models.throughput import lacks_memory

QUICK_SECONDS = 0.05
QUICK_ROUNDS = (1, 2)
REFUSED = "refuses this call"  # as linattn_core says it of a backend

Result = TypeVar("Result")


class DeviceLost(Exception):
    """A kernel failed so that this process can use the GPU no more; the message names it."""


def run_case(
    case: Case, settings: Settings, limits: Limits, earlier: Sequence[CaseResult] = ()
) -> CaseResult:
    """Returns the figures of one case; a method that fails its check gets none.

    Args:
        limits: the machine's, for the shares of them.
        earlier: the results of the same series so far.

    Raises:
        DeviceLost: a kernel left the GPU unusable.
    """
    makes = case.setup(settings, earlier)
    _check_names(case, makes)
    correct, rows = _checked(makes, settings)
    samples, refused = _timed(case, correct, settings)
    rows |= {name: MethodResult(name, words) for name, words in refused.items()}
    rival = samples.get(list(makes)[-1]) if case.series is not None else None
    for name, taken in samples.items():
        rows[name] = _measured(name, correct[name], taken, rival, limits, settings)
    targets = tuple(_target(target, rows, samples, settings) for target in case.targets)
    return CaseResult(case.description, tuple(rows[name] for name in makes), targets)


def _checked(
    makes: Mapping[str, Make], settings: Settings
) -> tuple[dict[str, Method], dict[str, MethodResult]]:
    """The methods that are right, and the rows of those that are not or are not here."""
    correct: dict[str, Method] = {}
    rows: dict[str, MethodResult] = {}
    for name, make in makes.items():
        try:
            made = guarded(name, make, settings)
            fault = guarded(name, made.check, settings)
        except NotMeasured as reason:
            rows[name] = MethodResult(name, str(reason))
            continue
        if fault is None:
            correct[name] = made
        else:
            rows[name] = MethodResult(name, NOT_CORRECT, detail=fault)
        del made  # frees the inputs of a method that is wrong
    return correct, rows


def _timed(
    case: Case, methods: Mapping[str, Method], settings: Settings
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Samples per unit by method, one a round, and why others fell out."""
    measured = interleave(
        methods,
        timer(settings.device),
        seconds=QUICK_SECONDS if settings.quick else case.seconds,
        rounds=QUICK_ROUNDS if settings.quick else case.rounds,
        short_seconds=0.0 if settings.quick and case.short_seconds else case.short_seconds,
        guard=lambda name, call: guarded(name, call, settings),
    )
    per_unit = {
        name: [sample / methods[name].units for sample in samples]
        for name, samples in measured.samples.items()
    }
    return per_unit, measured.refused


def unmeasured(case: Case, reason: str) -> CaseResult:
    """Returns the result of a case that gave none: each method that it promises says why.

    It leaves its series, whose tables compare methods that were at least looked for.
    """
    names = [name for target in case.targets for name in target.methods] or ["every method"]
    return CaseResult(
        dataclasses.replace(case.description, series=None, at=None),
        tuple(MethodResult(name, reason) for name in dict.fromkeys(names)),
        tuple(TargetResult(target, None, None) for target in case.targets),
    )


def guarded(name: str, call: Callable[[], Result], settings: Settings) -> Result:
    """Returns what the call does, or raises the reason why the method cannot be measured."""
    try:
        return call()
    except NotMeasured:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        if settings.device == "cuda" and not _alive():
            raise DeviceLost(f"{name} left the GPU unusable: {words}") from error
        if lacks_memory(error):
            raise NotMeasured("does not fit: no more memory could be allocated") from None
        refused = isinstance(error, ValueError) and REFUSED in words
        raise NotMeasured(words if refused else f"{RAISED} {words}") from error


def _alive() -> bool:
    """False when an earlier failure has left the GPU's context unusable."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _check_names(case: Case, makes: Mapping[str, Make]) -> None:
    wanted = {name for target in case.targets for name in target.methods}
    if not wanted <= set(makes):
        what = f"methods of the case {case.name!r}"
        raise ValueError(expected(what, f"{sorted(wanted)} for its targets", list(makes)))


def _measured(
    name: str,
    made: Method,
    samples: Sequence[float],
    rival: Sequence[float] | None,
    limits: Limits,
    settings: Settings,
) -> MethodResult:
    gemm = limits.gemm_float32 if settings.device == "cpu" else limits.gemm_bfloat16
    return MethodResult(
        name,
        MEASURED,
        value=spread(samples),
        rounds=len(samples),
        units=made.units,
        over_last=None if rival is None else ratio(rival, samples),
        share_of_gemm=_share(made.operations / made.units, gemm, samples),
        share_of_copy=_share(made.traffic / made.units, limits.copy_bandwidth, samples),
        peak=_peak(name, made, settings),
        estimated=made.estimated,
        note=made.note,
    )


def _peak(name: str, made: Method, settings: Settings) -> float | None:
    if made.peak is None:
        return None
    try:
        return guarded(name, made.peak, settings)
    except NotMeasured:
        return None


def _share(work: float, rate: float | None, samples: Sequence[float]) -> Spread | None:
    if not work or rate is None:
        return None
    return spread([work / rate / sample for sample in samples])


def _target(
    target: Target,
    rows: Mapping[str, MethodResult],
    samples: Mapping[str, Sequence[float]],
    settings: Settings,
) -> TargetResult:
    value = _figure(target, rows, samples)
    if value is None or settings.quick:
        return TargetResult(target, value, None)
    return TargetResult(target, value, target.reached(value.median))


def _figure(
    target: Target, rows: Mapping[str, MethodResult], samples: Mapping[str, Sequence[float]]
) -> Spread | None:
    row = rows[target.numerator]
    if target.of_gemm:
        return row.share_of_gemm
    if target.of_copy:
        return row.share_of_copy
    if target.denominator is None:
        return row.value
    if not set(target.methods) <= set(samples):
        return None
    return ratio(samples[target.numerator], samples[target.denominator])
