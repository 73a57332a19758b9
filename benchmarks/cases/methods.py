"""Attention operators as methods of cases: their inputs, their peak memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.operators import Operator, build
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.cases.problem import Problem
from benchmarks.cases.variants import (
    NEW,
    USED,
    VARIANTS,
    call_on,
    variant_method,
    writing_method,
)
from linattn_lab.memory import peak_memory
from linattn_lab.processes import run_apart

WARMING_LENGTH = 64
PEAK_SECONDS = 600.0  # the most time of a call in a process of its own

Work = tuple[str, Problem]  # the name of an operator, and its problem


def attention_case(
    name: str,
    shows: str,
    work: Mapping[str, Work],
    *,
    units: Callable[[Problem], float] = lambda problem: 1,
    peaks: bool = False,
    **fields: Any,
) -> Case:
    """Returns a case that compares operators, by the names that it gives them.

    Args:
        units: how many of the case's units a call does: 1 call, its positions, its samples.
        peaks: see `method`.
        fields: of `Case`.
    """

    def make(title: str, settings: Settings) -> Method:
        operator, asked = work[title]
        problem = asked.for_settings(settings)
        made = method(operator, problem, settings, peaks=peaks)
        return dataclasses.replace(made, units=units(problem))

    def setup(settings: Settings) -> dict[str, Make]:
        return {title: partial(make, title, settings) for title in work}

    return Case(name, shows, setup, **fields)


def method(name: str, problem: Problem, settings: Settings, *, peaks: bool = False) -> Method:
    """Returns the operator as a method, with inputs of its own.

    Args:
        peaks: measure the peak memory on a processor too, in a process of its own; on a GPU it
            costs nothing.
    """
    if name in VARIANTS:
        return variant_method(VARIANTS[name], problem)
    if name in (NEW, USED):
        return writing_method(name, problem)
    note = ""
    if name == FAST_TRANSFORMERS and problem.dtype != torch.float32:
        # Its kernels take float32 alone; the bytes are those of float32.
        problem, note = dataclasses.replace(problem, dtype=torch.float32), "float32"
    made = operator_method(build(name, problem, settings), problem)
    peak = None
    if settings.device == "cuda":
        peak = partial(peak_of_run, made.run, "cuda")
    elif peaks and not settings.quick:
        peak = partial(
            run_apart, peak_of_call, name, problem, settings, threads=settings.threads,
            seconds=PEAK_SECONDS,
        )  # fmt: skip
    return dataclasses.replace(made, peak=peak, note=note)


def operator_method(operator: Operator, problem: Problem) -> Method:
    """Returns a built operator as a method."""
    tensors = operator.tensors(problem)
    upstream = torch.ones_like(tensors[-1]) if problem.backward else None
    return Method(
        check=lambda: operator.fault(tensors),
        run=call_on(operator.call, tensors, upstream),
        operations=problem.operations if operator.linear else 0,
        traffic=problem.traffic if operator.linear else 0,
    )


def peak_of_call(name: str, problem: Problem, settings: Settings) -> float:
    """Returns the bytes that one call holds above its inputs, its outputs included.

    A tiny call first starts libraries and thread pools, whose memory is not the operator's.
    """
    tiny = dataclasses.replace(problem, batch=1, length=min(WARMING_LENGTH, problem.length))
    for each in (tiny, problem):
        operator = build(name, each, settings)
        peak = peak_of_run(call_on(operator.call, operator.tensors(each)))
    return peak


def peak_of_run(run: Callable[[], object], device: str = "cpu") -> float:
    """Returns the bytes by which the memory in use rises while it runs."""
    return peak_memory(torch.device(device), run)[1]
