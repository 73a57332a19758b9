"""The operator alone: beside its rivals, on one thread and two, in bfloat16, with few heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.cases.attention import LINEAR, LINEAR_CPU, LINEAR_CUDA, SDPA
from benchmarks.cases.methods import attention_case
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.cases.problem import HEADS, Problem, many_heads, passes
from benchmarks.measure.cases import Case, registry
from benchmarks.measure.machine import FAST_BFLOAT16, cpu_flags
from benchmarks.measure.results import Target

MIB = 2**20
LONG, USUAL, SHORT = 65_536, 16_384, 512
RIVALS = (LINEAR_CPU, LINEAR, FAST_TRANSFORMERS, SDPA)
ONE_THREAD, TWO_THREADS = f"{LINEAR_CPU}, one thread", f"{LINEAR_CPU}, two threads"
BFLOAT16 = f"{LINEAR_CPU}, bfloat16"
FEW_HEADS, RATE_OF_FEW_HEADS = 8, 0.6
GPU: dict[str, Any] = {"device": "cuda", "seconds": 1.5, "rounds": (3, 20)}

faster = partial(Target.faster, LINEAR_CPU)


def rivals(
    what: str, problem: Problem, names: Sequence[str], *targets: Target, **fields: Any
) -> Case:
    """Operators side by side on one problem."""
    causal = "Causal" if problem.causal else "Not causal"
    return attention_case(
        f"operator/{what}/{problem.slug}",
        f"{causal} attention, {problem.passes}, {problem}: {', '.join(names)}.",
        {name: (name, problem) for name in names},
        targets=targets,
        **fields,
    )


def peaks(linear_cpu: int, linear: int) -> tuple[Target, ...]:
    """What the operator may hold above its inputs of 96 MiB, in MiB."""
    bounds = {LINEAR_CPU: linear_cpu, LINEAR: linear}
    return tuple(
        Target(f"peak memory of {name}", name, at_most=bound * MIB, figure="peak")
        for name, bound in bounds.items()
    )


def one_head(problem: Problem) -> Case:
    """One thread and two on a single sequence with one head."""
    problems = {
        name: (LINEAR_CPU, dataclasses.replace(problem, threads=threads))
        for threads, name in enumerate((ONE_THREAD, TWO_THREADS), 1)
    }
    return attention_case(
        f"operator/one-head/{problem.slug}",
        f"One head, {problem.passes}, causal, {problem}: threads share the sequence itself.",
        problems, targets=(Target.faster(TWO_THREADS, ONE_THREAD, 1.8),), seconds=10,
    )  # fmt: skip


def bfloat16(problem: Problem) -> Case:
    """bfloat16 beside float32; more is promised where the machine has instructions for it."""
    half = dataclasses.replace(problem, dtype=torch.bfloat16)
    least = 1.5 if FAST_BFLOAT16 & cpu_flags() else 1
    return attention_case(
        "operator/bfloat16/forward",
        f"Causal linear attention, forward, {problem}: bfloat16 tensors beside float32.",
        {LINEAR_CPU: (LINEAR_CPU, problem), BFLOAT16: (LINEAR_CPU, half)},
        targets=(Target.faster(BFLOAT16, LINEAR_CPU, least),), seconds=10,
    )  # fmt: skip


def few_heads(backward: bool) -> Case:
    """One long sequence on a GPU, with many heads and with few."""
    counts = (HEADS, FEW_HEADS, 1)
    problems = {
        f"{LINEAR_CUDA}, {n} head{'s' if n > 1 else ''}": many_heads(LONG, n, backward=backward)
        for n in counts
    }
    many, few, one = problems
    shows = f"rate of {FEW_HEADS} heads over that of {HEADS}"
    return attention_case(
        f"operator/few-heads/{problems[one].slug}",
        f"One sequence of N={LONG:,}, {problems[one].passes}, with few heads and with many.",
        {name: (LINEAR_CUDA, problem) for name, problem in problems.items()},
        units=lambda problem: problem.heads * problem.length, unit="position and head",
        targets=(Target(shows, many, few, at_least=RATE_OF_FEW_HEADS),), **GPU,
    )  # fmt: skip


FORWARD, BOTH = passes(Problem(USUAL))
_SHARE = Target(f"{LINEAR_CPU}: share of the GEMM rate", LINEAR_CPU, at_least=0.7, figure="gemm")
_OF_TORCH = Target.faster(LINEAR, FAST_TRANSFORMERS, 2)
registry.add(
    rivals(
        "rivals", FORWARD, RIVALS, faster(FAST_TRANSFORMERS, 20), faster(LINEAR, 8),
        Target.faster(LINEAR, SDPA, 12), _OF_TORCH, _SHARE, *peaks(32, 160),
        seconds=40, peaks=True,
    ),
    rivals(
        "rivals", BOTH, RIVALS, faster(FAST_TRANSFORMERS, 14), faster(LINEAR, 6), _OF_TORCH,
        *peaks(160, 300), seconds=45, peaks=True,
    ),
    rivals(
        "rivals-at-512", Problem(SHORT), RIVALS, faster(FAST_TRANSFORMERS, 10),
        faster(LINEAR, 4.5), faster(SDPA, 4.6), seconds=10,
    ),
    rivals(
        "rivals-not-causal", dataclasses.replace(BOTH, causal=False), RIVALS[:3],
        faster(FAST_TRANSFORMERS, 4), faster(LINEAR, 4),
    ),
    *map(one_head, passes(Problem(LONG, heads=1))),
    bfloat16(FORWARD),
    *map(few_heads, (False, True)),
)  # fmt: skip
