"""Measures in processes of their own, which find a case in the registry by its name."""

from __future__ import annotations

from collections.abc import Callable

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.measure.cases import Case, NotMeasured, Settings, registry
from benchmarks.measure.machine import Limits, measure_limits
from benchmarks.measure.processes import apart
from benchmarks.measure.results import CaseResult
from benchmarks.measure.runner import measured, unmeasured

Measure = Callable[[Case, Settings, Limits], CaseResult]


def isolated(seconds: float) -> Measure:
    """Measures each case in a process of its own: one that crashes or hangs costs only itself."""

    def measure(case: Case, settings: Settings, limits: Limits) -> CaseResult:
        found = (case.name, settings, limits)
        try:
            return apart(_case, *found, threads=settings.threads, seconds=seconds)
        except NotMeasured as reason:
            return unmeasured(case, f"not measured: {reason}")

    return measure


def isolated_limits(settings: Settings) -> Limits:
    """Measures the machine's limits in a process of its own, which leaves a GPU to the cases."""
    return apart(measure_limits, settings, threads=settings.threads)


def _case(name: str, settings: Settings, limits: Limits) -> CaseResult:
    return measured(registry.named(name, settings.device), settings, limits)
