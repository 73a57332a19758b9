"""The ladder of prototypes: each kernel by its name, from the paper's own to tensor cores."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.cases.attention import LINEAR_CUDA, Attention, method, method_of
from benchmarks.cases.operator import USUAL_ON_GPU
from benchmarks.cases.problem import Problem, dtype_name, many_heads, sized
from benchmarks.measure import oracle
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings, registry
from benchmarks.measure.results import CaseResult

MODULE = "linattn_cuda.prototypes"
EVERY_RUNG = "every prototype"


def _case(dtype: torch.dtype) -> Case:
    problem = many_heads(USUAL_ON_GPU, dtype=dtype)

    def setup(settings: Settings, _: Sequence[CaseResult]) -> dict[str, Make]:
        here = sized(problem, settings)
        built = functools.partial(method, LINEAR_CUDA, here, settings, backward=False)
        try:
            rungs = _rungs()
        except NotMeasured as reason:
            return {EVERY_RUNG: functools.partial(_raise, reason), LINEAR_CUDA: built}
        made = {name: functools.partial(_rung, name, rung, here) for name, rung in rungs.items()}
        return {**made, LINEAR_CUDA: built}

    return Case(
        f"operator/ladder/{dtype_name(dtype)}",
        shows=f"Forward by each prototype, and by the built kernel: {problem}.",
        setup=setup,
        seconds=2,
        rounds=(3, 10),
        device="cuda",
    )


def _rungs() -> Mapping[str, Any]:
    """The prototypes by name, in the order in which they build on one another."""
    try:
        found: Mapping[str, Any] = importlib.import_module(MODULE).LADDER
    except (ImportError, AttributeError) as error:
        raise NotMeasured(f"{MODULE} has no ladder here: {error}".splitlines()[0]) from error
    return found


def _raise(reason: NotMeasured) -> Method:
    raise reason


def _rung(name: str, rung: Any, problem: Problem) -> Method:
    """Without its peak: CuPy's own allocations would not be counted."""
    call = functools.partial(rung.attention, feature_map="elu", eps=oracle.EPS)
    operator = Attention(name, call, oracle.linear_rows)
    return method_of(operator, problem, backward=False)


for _dtype in (torch.bfloat16, torch.float32):
    registry.add(_case(_dtype))
