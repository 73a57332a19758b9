"""The ladder of prototypes: each kernel by its name, from the paper's own to tensor cores."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.cases.attention import LINEAR_CUDA, Attention, method_of
from benchmarks.cases.cuda_operator import USUAL, dtype_name, entry, many_heads, scaled, size_words
from benchmarks.cases.problem import Problem
from benchmarks.measure import oracle
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings, registry
from benchmarks.measure.results import CaseResult

MODULE = "linattn_cuda.prototypes"
EVERY_RUNG = "every prototype"


def _case(dtype: torch.dtype) -> Case:
    problem = many_heads(USUAL, dtype=dtype)

    def setup(settings: Settings, _: Sequence[CaseResult]) -> dict[str, Make]:
        kernel = {LINEAR_CUDA: functools.partial(entry, LINEAR_CUDA, problem, settings, False)}
        try:
            rungs = _rungs()
        except NotMeasured as reason:
            return {EVERY_RUNG: functools.partial(_raise, reason), **kernel}
        made = {
            name: functools.partial(_rung, name, rung, problem, settings)
            for name, rung in rungs.items()
        }
        return {**made, **kernel}

    return Case(
        f"operator/ladder/{dtype_name(dtype)}",
        shows=f"Forward by each prototype, and by the built kernel: {size_words(problem)}.",
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


def _rung(name: str, rung: Any, problem: Problem, settings: Settings) -> Method:
    """Without its peak: CuPy's own allocations would not be counted."""
    call = functools.partial(rung.attention, feature_map="elu", eps=oracle.EPS)
    operator = Attention(name, call, oracle.linear_rows)
    return method_of(operator, scaled(problem, settings), backward=False)


for _dtype in (torch.bfloat16, torch.float32):
    registry.add(_case(_dtype))
