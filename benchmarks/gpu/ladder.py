"""The ladder of prototypes: each kernel by its name, from the paper's own to tensor cores."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks import oracle
from benchmarks.cases.attention import LINEAR_CUDA, Attention, Problem, method_of
from benchmarks.gpu.instrument import instrument
from benchmarks.gpu.operators import (
    USUAL,
    dtype_name,
    entry,
    many_heads,
    scaled,
    size_words,
)
from benchmarks.gpu.placed import placed
from benchmarks.registry import Absent, Case, Method, NotMeasured, Registry, Settings

MODULE = "linattn_cuda.prototypes"
EVERY_RUNG = "every prototype"


def register(registry: Registry) -> None:
    """Adds a case for each dtype that a rung may know."""
    for dtype in (torch.bfloat16, torch.float32):
        registry.add(_case(dtype))


def rungs() -> Mapping[str, Any]:
    """Returns the prototypes by name, in the order in which they build on one another.

    Raises:
        NotMeasured: where they, or CuPy, cannot be imported.
    """
    try:
        found: Mapping[str, Any] = importlib.import_module(MODULE).LADDER
    except (ImportError, AttributeError) as error:
        raise NotMeasured(f"{MODULE} has no ladder here: {error}".splitlines()[0]) from error
    return found


def _case(dtype: torch.dtype) -> Case:
    problem = many_heads(USUAL, dtype=dtype)
    return Case(
        f"attention/prototypes/{dtype_name(dtype)}",
        shows=f"Forward by each prototype, and by the built kernel: {size_words(problem)}.",
        setup=lambda settings: _entries(problem, settings),
        seconds=2,
        rounds=(3, 10),
    )


def _entries(problem: Problem, settings: Settings) -> list[Method | Absent]:
    kernel = entry(LINEAR_CUDA, problem, False, settings)
    try:
        found = rungs()
    except NotMeasured as reason:
        return [Absent(EVERY_RUNG, str(reason)), kernel]
    return [*(_rung(name, rung, problem, settings) for name, rung in found.items()), kernel]


def _rung(name: str, rung: Any, problem: Problem, settings: Settings) -> Method | Absent:
    on, size = instrument(settings.device), scaled(problem, settings)
    call = functools.partial(rung.attention, feature_map="elu", eps=oracle.EPS)
    operator = Attention(name, call, oracle.linear_rows)
    made = placed(name, lambda: method_of(operator, size, backward=False), on)
    # CuPy's own allocations would not be counted.
    return dataclasses.replace(made, peak=None) if isinstance(made, Method) else made
