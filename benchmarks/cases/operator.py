"""The operator alone: beside its rivals, in bfloat16, with few heads."""

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
from benchmarks.measure.results import Target

MIB = 2**20
LONG, USUAL, SHORT = 65_536, 16_384, 512
RIVALS = (LINEAR_CPU, LINEAR, FAST_TRANSFORMERS, SDPA)
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
    attention_case(
        "operator/bfloat16/forward",
        f"Causal linear attention, forward, {FORWARD}: bfloat16 tensors beside float32.",
        {
            LINEAR_CPU: (LINEAR_CPU, FORWARD),
            BFLOAT16: (LINEAR_CPU, dataclasses.replace(FORWARD, dtype=torch.bfloat16)),
        },
        targets=(Target.faster(BFLOAT16, LINEAR_CPU, 1.5),), seconds=10,
    ),
    *map(few_heads, (False, True)),
)  # fmt: skip
