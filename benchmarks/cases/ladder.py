"""The ladder of prototypes: each kernel by its name, from the paper's own to tensor cores."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import torch

from benchmarks.cases.attention import LINEAR_CUDA, Operator, linear_rows
from benchmarks.cases.methods import method, method_of
from benchmarks.cases.operator import USUAL_ON_GPU
from benchmarks.cases.problem import Problem, many_heads
from benchmarks.measure import oracle
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings, registry

MODULE = "linattn_cuda.prototypes"
EVERY_RUNG = "every prototype"


def _case(dtype: str) -> Case:
    problem = dataclasses.replace(many_heads(USUAL_ON_GPU), dtype=getattr(torch, dtype))
    return Case(
        f"operator/ladder/{dtype}",
        shows=f"Forward by each prototype, and by the built kernel: {problem}.",
        setup=partial(_setup, problem),
        seconds=2,
        rounds=(3, 10),
        device="cuda",
    )


def _setup(asked: Problem, settings: Settings) -> dict[str, Make]:
    problem = asked.sized(settings)
    made: dict[str, Make]
    try:
        made = {name: partial(_rung, rung, problem) for name, rung in _rungs().items()}
    except NotMeasured as reason:
        made = {EVERY_RUNG: partial(_raise, reason)}
    return {**made, LINEAR_CUDA: partial(method, LINEAR_CUDA, problem, settings)}


def _rungs() -> Mapping[str, Any]:
    """The prototypes by name, in the order in which they build on one another."""
    try:
        rungs: Mapping[str, Any] = importlib.import_module(MODULE).LADDER
    except (ImportError, AttributeError) as error:
        raise NotMeasured(f"{MODULE} has no ladder here: {error}".splitlines()[0]) from error
    return rungs


def _raise(reason: NotMeasured) -> NoReturn:
    raise reason


def _rung(rung: Any, problem: Problem) -> Method:
    """Without its peak: CuPy's own allocations would not be counted."""
    call = partial(rung.attention, feature_map="elu", eps=oracle.EPS)
    return method_of(Operator(call, linear_rows(problem)), problem)


registry.add(_case("bfloat16"), _case("float32"))
