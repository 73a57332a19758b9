"""Attention operators as methods of cases: whether they fit, their inputs, their peak memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from benchmarks.cases.attention import MATERIALIZED, Operator, build
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings
from benchmarks.measure.processes import apart
from linattn_models.throughput import available_memory, peak_memory

GIB = 2**30
SHARE_OF_FREE = 0.8  # of the free memory that a call may be expected to take
MOST_SECONDS = 240.0  # of a call
MOST_GROWTH = 4.0  # of the time of a unit, where the length doubles
WARMING_LENGTH = 64
# Tensors that are alive at once: of the inputs' size, and of the N x N matrices.
OUTPUT_AND_GRADIENTS, WEIGHTS_AND_GRADIENTS = 4, 3

Result = TypeVar("Result")
Work = tuple[str, Problem]  # the name of an operator, and what is asked of it


def attention_case(
    name: str,
    shows: str,
    work: Mapping[str, Work],
    *,
    units: Callable[[Problem], float] = lambda problem: 1,
    most_seconds: float = MOST_SECONDS,
    peaks: bool = False,
    **fields: Any,
) -> Case:
    """Returns a case that compares operators, by the names that it gives them.

    Args:
        units: how many of the case's units a call does: 1 call, its positions, its samples.
        most_seconds: a call that is expected to take longer is not made.
        peaks: see `method`.
    """

    def make(title: str, settings: Settings) -> Method:
        operator, asked = work[title]
        if asked.threads is not None and asked.threads > settings.threads:
            raise NotMeasured("the run was given fewer threads (--threads)")
        problem, count = asked.sized(settings), units(asked)
        if not settings.quick:
            _check_memory(least_bytes(operator, problem), settings.device)
            _check_time(title, count, most_seconds, settings)
        return dataclasses.replace(method(operator, problem, settings, peaks=peaks), units=count)

    def setup(settings: Settings) -> dict[str, Make]:
        return {title: partial(make, title, settings) for title in work}

    return Case(name, shows, setup=setup, **fields)


def _check_memory(needed: float, device: str) -> None:
    free = available_memory(torch.device(device))
    if needed > SHARE_OF_FREE * free:
        sizes = f"needs about {needed / GIB:.3g} GiB, {free / GIB:.3g} GiB are free"
        raise NotMeasured(f"does not fit: {sizes}")


def _check_time(title: str, units: float, most_seconds: float, settings: Settings) -> None:
    """Refuses a method without a value at the length before, or that may now take too long."""
    if not settings.earlier:
        return
    before = settings.earlier[-1].method(title)
    if before.seconds is None:
        raise NotMeasured(before.status)
    expected = MOST_GROWTH * units * before.seconds
    if expected > most_seconds:
        raise NotMeasured(f"not measured: up to {expected:.0f} s per call")


def least_bytes(name: str, problem: Problem) -> float:
    """Returns a lower bound of the bytes that a call holds above its inputs, close in practice."""
    matrices = problem.batch * problem.heads * problem.length**2 if name == MATERIALIZED else 0
    numbers = OUTPUT_AND_GRADIENTS * problem.numbers + WEIGHTS_AND_GRADIENTS * matrices
    return float(numbers * problem.dtype.itemsize)


def method(name: str, problem: Problem, settings: Settings, *, peaks: bool = False) -> Method:
    """Returns the operator as a method, with inputs of its own.

    Args:
        peaks: measure the peak memory on a processor too, in a process of its own; on a GPU it
            costs nothing.

    Raises:
        NotMeasured: its backend or library is not installed.
    """
    note = ""
    if name == FAST_TRANSFORMERS and problem.dtype != torch.float32:
        # It knows no other; its bytes are counted as they are.
        problem, note = dataclasses.replace(problem, dtype=torch.float32), "float32"
    made = method_of(build(name, problem, settings), problem)
    peak = None
    if settings.device == "cuda":
        peak = partial(_peak, made.run, "cuda")
    elif peaks and not settings.quick:
        peak = partial(apart, peak_of_call, name, problem, settings, threads=settings.threads)
    return dataclasses.replace(made, peak=peak, note=note)


def method_of(operator: Operator, problem: Problem) -> Method:
    """Returns a built operator as a method."""
    tensors = operator.tensors(problem)
    upstream = torch.ones_like(tensors[-1]) if problem.backward else None
    return Method(
        check=_on_threads(lambda: operator.fault(tensors), problem.threads),
        run=_on_threads(call_on(operator, tensors, upstream), problem.threads),
        operations=problem.operations if operator.linear else 0,
        traffic=problem.traffic if operator.linear else 0,
    )


def call_on(
    operator: Operator, tensors: list[torch.Tensor], upstream: torch.Tensor | None = None
) -> Callable[[], object]:
    """Returns the measured call: forward, and backward where the inputs want gradients.

    Args:
        upstream: the gradient of the output, in the operator's layout; without it the call makes
            its own, which then counts as memory of the call.
    """
    if not tensors[0].requires_grad:
        return lambda: operator.call(*tensors)

    def forward_and_backward() -> object:
        out = operator.call(*tensors)
        gradient = torch.ones_like(out) if upstream is None else upstream
        return torch.autograd.grad(out, tensors, gradient)

    return forward_and_backward


def peak_of_call(name: str, problem: Problem, settings: Settings) -> float:
    """Returns the bytes that one call holds above its inputs, its outputs included.

    A tiny call first starts libraries and thread pools, whose memory is not the operator's.
    """
    tiny = dataclasses.replace(problem, batch=1, length=min(WARMING_LENGTH, problem.length))
    for each in (tiny, problem):
        operator = build(name, each, settings)
        peak = _peak(call_on(operator, operator.tensors(each)))
    return peak


def _peak(call: Callable[[], object], device: str = "cpu") -> float:
    return peak_memory(torch.device(device), call)[1]


def _on_threads(call: Callable[[], Result], threads: int | None) -> Callable[[], Result]:
    """The call with this number of torch's threads, which is set back after it."""

    def called() -> Result:
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    return call if threads is None else called
