"""Peak memory of the causal operator above its inputs, each call in a process of its own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    LINEAR,
    LINEAR_CPU,
    SDPA,
    attention,
    call_on,
    method,
)
from benchmarks.cases.problem import PASSES, Problem, sized, slug
from benchmarks.measure.cases import Case, Method, Settings, registry
from benchmarks.measure.processes import peak_apart
from benchmarks.measure.results import Target

MIB = 2**20
LENGTH, WARMING_LENGTH = 16_384, 64


def make_call(
    name: str, problem: Problem, backward: bool, settings: Settings
) -> Callable[[], object]:
    """Allocates the inputs and returns the call to measure; runs in the child process."""
    operator = attention(name, problem, settings)
    return call_on(operator, operator.tensors(problem, backward=backward))


def peak(name: str, problem: Problem, backward: bool, settings: Settings) -> float:
    """Returns the bytes that one call holds above its inputs, in a process of its own."""
    tiny = dataclasses.replace(problem, batch=1, length=min(WARMING_LENGTH, problem.length))
    return peak_apart(
        make_call,
        (name, problem, backward, settings),
        tiny=(name, tiny, backward, settings),
        threads=settings.threads,
    )


def _method(name: str, backward: bool, settings: Settings) -> Method:
    problem = sized(Problem(LENGTH), settings)
    checked = method(name, problem, settings, backward=backward)
    return Method(checked.check, measure=lambda: peak(name, problem, backward, settings))


def _case(backward: bool, most: dict[str, int]) -> Case:
    return Case(
        f"operator/memory/{slug(backward)}",
        shows=f"Peak resident memory of the process above its inputs (96 MiB), {PASSES[backward]}, "
        f"causal, {Problem(LENGTH)}; outputs and gradients count.",
        setup=lambda settings, _: {
            name: functools.partial(_method, name, backward, settings)
            for name in (LINEAR_CPU, LINEAR, FAST_TRANSFORMERS, SDPA)
        },
        targets=tuple(
            Target(f"peak of {name}", name, at_most=bound * MIB) for name, bound in most.items()
        ),
        quantity="bytes",
        seconds=40,
        rounds=(2, 3),
    )


registry.add(_case(backward=False, most={LINEAR_CPU: 32, LINEAR: 160}))
registry.add(_case(backward=True, most={LINEAR_CPU: 160, LINEAR: 300}))
