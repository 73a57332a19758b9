"""Measures a case in this process, or in one of its own that finds it in the registry by name."""

from __future__ import annotations

from collections.abc import Callable

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.measure.cases import Case, NotMeasured, Settings, registry
from benchmarks.measure.machine import Limits, measure_limits
from benchmarks.measure.processes import apart
from benchmarks.measure.results import RAISED, CaseResult
from benchmarks.measure.runner import run_case, unmeasured

Measure = Callable[[Case, Settings, Limits], CaseResult]


def measured(case: Case, settings: Settings, limits: Limits) -> CaseResult:
    """Measures a case in this process; one that breaks leaves the others to run."""
    try:
        return run_case(case, settings, limits)
    except Exception as error:  # noqa: BLE001 - one broken case must not end the others
        return unmeasured(case, f"{RAISED} {type(error).__name__}: {error}".splitlines()[0])


def isolated(seconds: float) -> Measure:
    """Measures each case in a process of its own: one that crashes or hangs costs only itself."""

    def measure(case: Case, settings: Settings, limits: Limits) -> CaseResult:
        threads = settings.threads
        try:
            return apart(_case, case.name, settings, limits, threads=threads, seconds=seconds)
        except NotMeasured as reason:
            return unmeasured(case, f"not measured: {reason}")

    return measure


def isolated_limits(settings: Settings) -> Limits:
    """Measures the machine's limits in a process of its own, which leaves a GPU to the cases."""
    return apart(measure_limits, settings, threads=settings.threads)


def _case(name: str, settings: Settings, limits: Limits) -> CaseResult:
    return measured(registry.named(name, settings.device), settings, limits)
