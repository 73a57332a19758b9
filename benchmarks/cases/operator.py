"""The operator alone: beside its rivals, with arguments, and what limits a call."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.case import Case
from benchmarks.cases.methods import attention_case
from benchmarks.cases.operators import LINEAR, LINEAR_CPU, LINEAR_CUDA, LINEAR_TRITON, SDPA
from benchmarks.cases.peers import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    FLASH_LINEAR_FUSED,
)
from benchmarks.cases.problem import HEADS, Problem, many_heads, passes
from benchmarks.cases.variants import (
    EXPANDED,
    FIXED,
    GROUP,
    GROUPED,
    IDENTITY,
    MASKED,
    NEW,
    TRAINED,
    USED,
)

LONG, USUAL, MIDDLE, SHORT, TINY = 65_536, 16_384, 4_096, 512, 16
RIVALS = (LINEAR_CPU, LINEAR, FAST_TRANSFORMERS, SDPA)
BFLOAT16, SHORTEST = f"{LINEAR_CPU}, bfloat16", f"{LINEAR_CPU}, 2 positions"
FEW_HEADS = 8
# On a GPU, whose heads fill it or do not.
ON_GPU = (LINEAR_CUDA, LINEAR_TRITON, FLASH_LINEAR_ATTENTION, FLASH_LINEAR_FUSED, LINEAR)
GPU_HEADS, GPU_WIDTHS, GPU_DTYPES = (8, 64, 512), (64, 128), (torch.bfloat16, torch.float32)
BRIEF: dict[str, Any] = {"seconds": 10}
PEAKS: dict[str, Any] = {"seconds": 45, "peaks": True}
GPU: dict[str, Any] = {"device": "cuda", "seconds": 1.5, "rounds": (3, 20)}

FORWARD, BOTH = passes(Problem(USUAL))
NARROW, NARROW_BOTH = passes(Problem(USUAL, width=32))
WHOLE, WHOLE_BOTH = passes(Problem(USUAL, causal=False))


def at(length: int, problem: Problem) -> Problem:
    """The problem at another length."""
    return dataclasses.replace(problem, length=length)


# The part of the name after "rivals", the problem, and fields of the case.
BESIDE_RIVALS: tuple[tuple[str, Problem, dict[str, Any]], ...] = (
    ("", FORWARD, PEAKS),
    ("", BOTH, PEAKS),
    ("-at-4096", at(MIDDLE, BOTH), {}),
    ("-at-512", at(SHORT, FORWARD), BRIEF),
    ("-d32", NARROW, {}),
    ("-d32-at-4096", at(MIDDLE, NARROW_BOTH), {}),
    ("-d32-at-512", at(SHORT, NARROW), BRIEF),
    ("-d32-at-512", at(SHORT, NARROW_BOTH), BRIEF),
    ("-d32-at-16", at(TINY, NARROW), BRIEF),
    ("-not-causal", WHOLE_BOTH, {"names": RIVALS[:3]}),
)
ARGUMENTS = (
    (FORWARD, (LINEAR_CPU, MASKED, FIXED, GROUPED, EXPANDED)),
    (BOTH, (LINEAR_CPU, MASKED, FIXED, TRAINED, GROUPED, EXPANDED)),
)
LIMITS = (
    ("limits", FORWARD), ("limits", BOTH), ("limits-d32", NARROW), ("limits-d32", NARROW_BOTH),
    ("limits-not-causal", WHOLE), ("limits-not-causal", WHOLE_BOTH),
)  # fmt: skip


def make_rivals_case(
    what: str, problem: Problem, names: Sequence[str] = RIVALS, **fields: Any
) -> Case:
    """Operators side by side on one problem."""
    causal = "Causal" if problem.causal else "Not causal"
    pairs = ((rival, ours) for ours in (LINEAR_CPU, LINEAR) for rival in names)
    return attention_case(
        f"operator/rivals{what}/{problem.slug}",
        f"{causal} attention, {problem.passes}, {problem}: {', '.join(names)}.",
        {name: (name, problem) for name in names},
        ratios=tuple(pair for pair in pairs if pair[0] not in (pair[1], LINEAR_CPU)),
        **fields,
    )


def bfloat16() -> Case:
    """One problem in both dtypes."""
    half = dataclasses.replace(FORWARD, dtype=torch.bfloat16)
    return attention_case(
        "operator/bfloat16/forward",
        f"Causal linear attention, forward, {FORWARD}: bfloat16 tensors beside float32.",
        {LINEAR_CPU: (LINEAR_CPU, FORWARD), BFLOAT16: (LINEAR_CPU, half)},
        ratios=((LINEAR_CPU, BFLOAT16),),
        **BRIEF,
    )


def few_heads(backward: bool) -> Case:
    """One long sequence on a GPU, with many heads and with few."""
    problems = {
        f"{LINEAR_CUDA}, {n} head{'s' if n > 1 else ''}": many_heads(LONG, n, backward=backward)
        for n in (HEADS, FEW_HEADS, 1)
    }
    many, few, one = problems
    return attention_case(
        f"operator/few-heads/{problems[one].slug}",
        f"One sequence of N={LONG:,}, {problems[one].passes}, with few heads and with many.",
        {name: (LINEAR_CUDA, problem) for name, problem in problems.items()},
        units=lambda problem: problem.heads * problem.length,
        unit="position and head",
        ratios=((few, many), (one, many)),
        **GPU,
    )


def make_gpu_case(problem: Problem) -> Case:
    """Operators side by side on a GPU; softmax attention has no numerator alone."""
    dtype = str(problem.dtype).removeprefix("torch.")
    kind, names = ("-numerator", ON_GPU) if problem.bare else ("", (*ON_GPU, SDPA))
    what = f"{dtype}-d{problem.width}{kind}"
    return attention_case(
        f"operator/{what}-h{problem.heads}/{problem.slug}",
        f"Causal attention, {problem.passes}, {problem}"
        f"{', without feature map and normalizer' if problem.bare else ''}.",
        {name: (name, problem) for name in names},
        ratios=tuple((name, LINEAR_CUDA) for name in names[1:]),
        **GPU,
    )


def gpu_problems() -> Iterator[Problem]:
    """Each width and dtype with few heads and many, forward and with gradients."""
    for width, dtype, bare in itertools.product(GPU_WIDTHS, GPU_DTYPES, (False, True)):
        for heads in GPU_HEADS:
            size = Problem(MIDDLE, 1, heads, width, dtype=dtype, bare=bare)
            yield from passes(size)


def arguments(problem: Problem, names: Sequence[str]) -> Case:
    """What a mask, decay and grouped heads cost."""
    costs = ((name, LINEAR_CPU) for name in (MASKED, FIXED, TRAINED) if name in names)
    return attention_case(
        f"operator/arguments/{problem.slug}",
        f"What arguments cost: causal, {problem.passes}, {problem}, linattn-cpu; {GROUP} query "
        "heads per key head in the last two.",
        {name: (name, problem) for name in names},
        ratios=(*costs, (EXPANDED, GROUPED)),
        seconds=40,
    )


def short_limits(problem: Problem) -> Case:
    """The fixed cost of a call, and of its feature map."""
    return attention_case(
        f"operator/limits-d32-at-512/{problem.slug}",
        f"What a short call consists of: causal, {problem.passes}, {problem}; without a feature "
        "map, and with two positions, whose time is the fixed cost of a call.",
        {
            LINEAR_CPU: (LINEAR_CPU, problem),
            IDENTITY: (IDENTITY, problem),
            SHORTEST: (LINEAR_CPU, at(2, problem)),  # the query of 1 has no gradient
        },
        **BRIEF,
    )


def long_limits(name: str, problem: Problem) -> Case:
    """The feature map, and writing the results."""
    return attention_case(
        f"operator/{name}/{problem.slug}",
        f"What a long call consists of: {'' if problem.causal else 'not '}causal, "
        f"{problem.passes}, {problem}; without a feature map, and writing "
        "its results alone, for which the system clears the pages of new memory.",
        {each: (each, problem) for each in (LINEAR_CPU, IDENTITY, NEW, USED)},
    )


CASES = (
    *(make_rivals_case(what, problem, **fields) for what, problem, fields in BESIDE_RIVALS),
    bfloat16(),
    *map(few_heads, (False, True)),
    *map(make_gpu_case, gpu_problems()),
    *(arguments(problem, names) for problem, names in ARGUMENTS),
    *map(short_limits, (at(SHORT, NARROW), at(SHORT, NARROW_BOTH))),
    *(long_limits(name, problem) for name, problem in LIMITS),
)
