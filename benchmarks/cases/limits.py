"""What limits a call of linattn-cpu: its fixed cost, its feature map, writing its results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
from functools import partial

import torch
from torch import Tensor

from benchmarks.cases.arguments import fault
from benchmarks.cases.attention import LINEAR_CPU, Call, Operator, require_backend
from benchmarks.cases.methods import call_on
from benchmarks.cases.problem import Problem, passes
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from linattn_core import linear_attention

IDENTITY, SHORTEST = f"{LINEAR_CPU}, identity", f"{LINEAR_CPU}, 2 positions"
NEW, USED = "results written, new memory", "results written, used memory"
GRADIENTS = 3  # of queries, keys and values


def call_of(name: str, asked: Problem, settings: Settings) -> Method:
    """Returns the call as it is, without a feature map, or with two positions."""
    require_backend("cpu")
    problem = asked.sized(settings)
    if name == SHORTEST:
        problem = dataclasses.replace(problem, length=2)  # the query of 1 has no gradient
    shape = (problem.batch, problem.heads, problem.length, problem.width)
    generator = torch.Generator().manual_seed(0)
    # Not negative, so that the identity has no sum close to 0.
    tensors = [torch.rand(shape, generator=generator) for _ in range(3)]
    tensors = [x.requires_grad_(problem.backward) for x in tensors]
    operator = Operator(_attend(name, problem, "cpu"), _attend(name, problem, "reference"))
    return Method(
        check=partial(fault, operator, tensors),
        run=call_on(operator, tensors, torch.ones(shape)),
        operations=problem.operations,
        traffic=problem.traffic,
    )


def writes_of(name: str, asked: Problem, settings: Settings) -> Method:
    """Returns the writing of every number of the outputs and the gradients, and nothing else."""
    problem = asked.sized(settings)
    shape = (problem.batch, problem.heads, problem.length, problem.width)
    count = 1 + GRADIENTS * problem.backward
    used = [torch.zeros(shape) for _ in range(count)] if name == USED else []

    def write() -> list[Tensor]:
        """Tensors of ones."""
        return [x.fill_(1) for x in used or [_new(shape) for _ in range(count)]]

    def check() -> str | None:
        right = all(bool(x.eq(1).all()) for x in write())
        return None if right else "a number is not written"

    return Method(check=check, run=write, traffic=count * problem.numbers * problem.dtype.itemsize)


def _new(shape: tuple[int, ...]) -> Tensor:
    """Returns memory of the system, in huge pages where it has them, as linattn-cpu asks for."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape)
    size = math.prod(shape) * torch.float32.itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)


def _attend(name: str, problem: Problem, backend: str) -> Call:
    feature_map = "identity" if name == IDENTITY else "elu"
    return partial(
        linear_attention, is_causal=problem.causal, feature_map=feature_map, backend=backend
    )


def _methods(names: tuple[str, ...], problem: Problem, settings: Settings) -> dict[str, Make]:
    makers = {NEW: writes_of, USED: writes_of}
    return {name: partial(makers.get(name, call_of), name, problem, settings) for name in names}


def _short(problem: Problem) -> Case:
    return Case(
        f"operator/limits-d32-at-512/{problem.slug}",
        f"What a short call consists of: causal, {problem.passes}, {problem}; without a feature "
        "map, and with two positions, whose time is the fixed cost of a call.",
        setup=partial(_methods, (LINEAR_CPU, IDENTITY, SHORTEST), problem), seconds=10,
    )  # fmt: skip


def _long(name: str, problem: Problem) -> Case:
    return Case(
        f"operator/{name}/{problem.slug}",
        f"What a long call consists of: {problem.passes}, {problem}; without a feature map, and "
        "writing its results alone, for which the system clears the pages of new memory.",
        setup=partial(_methods, (LINEAR_CPU, IDENTITY, NEW, USED), problem),
    )


registry.add(
    *map(_short, passes(Problem(512, width=32))),
    *map(partial(_long, "limits"), passes(Problem(16_384))),
    *map(partial(_long, "limits-d32"), passes(Problem(16_384, width=32))),
    *map(partial(_long, "limits-not-causal"), passes(Problem(16_384, causal=False))),
)
