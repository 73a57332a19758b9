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
LONG, USUAL, MIDDLE, SHORT, TINY = 65_536, 16_384, 4_096, 512, 16
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


def of_peak(share: float) -> Target:
    """The promised share of the rate of multiply-adds on numbers in registers."""
    shows = f"{LINEAR_CPU}: share of the multiply-adds in registers"
    return Target(shows, LINEAR_CPU, at_least=share, figure="fma")


def within(seconds: float) -> Target:
    """The promised time of a call."""
    return Target(f"{LINEAR_CPU}: a call", LINEAR_CPU, at_most=seconds)


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
NARROW, NARROW_BOTH = passes(Problem(USUAL, width=32))
_OF_TORCH = Target.faster(LINEAR, FAST_TRANSFORMERS, 2)
registry.add(
    rivals(
        "rivals", FORWARD, RIVALS, faster(FAST_TRANSFORMERS, 30), faster(LINEAR, 8),
        Target.faster(LINEAR, SDPA, 12), _OF_TORCH, of_peak(0.63), *peaks(32, 160),
        seconds=40, peaks=True,
    ),
    rivals(
        "rivals", BOTH, RIVALS, faster(FAST_TRANSFORMERS, 20), faster(LINEAR, 6), _OF_TORCH,
        *peaks(160, 300), seconds=45, peaks=True,
    ),
    rivals(
        "rivals-at-4096", dataclasses.replace(BOTH, length=MIDDLE), RIVALS,
        faster(FAST_TRANSFORMERS, 11),
    ),
    rivals(
        "rivals-at-512", Problem(SHORT), RIVALS, faster(FAST_TRANSFORMERS, 10),
        faster(LINEAR, 4.5), faster(SDPA, 4.6), seconds=10,
    ),
    rivals(
        "rivals-d32", NARROW, RIVALS, faster(FAST_TRANSFORMERS, 25), of_peak(0.55),
    ),
    rivals(
        "rivals-d32-at-4096", dataclasses.replace(NARROW_BOTH, length=MIDDLE), RIVALS,
        faster(FAST_TRANSFORMERS, 14), faster(LINEAR, 9),
    ),
    rivals(
        "rivals-d32-at-512", dataclasses.replace(NARROW, length=SHORT), RIVALS, faster(SDPA, 25),
        within(80e-6), seconds=10,
    ),
    rivals(
        "rivals-d32-at-512", dataclasses.replace(NARROW_BOTH, length=SHORT), RIVALS,
        faster(SDPA, 22), within(320e-6), seconds=10,
    ),
    rivals(
        "rivals-d32-at-16", dataclasses.replace(NARROW, length=TINY), RIVALS, within(35e-6),
        seconds=10,
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
