"""The operator alone, on either device: its rivals, its threads, few heads, widths, dtypes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    LINEAR,
    LINEAR_CPU,
    LINEAR_CUDA,
    SDPA,
    method,
)
from benchmarks.cases.problem import HEADS, PASSES, WIDTH, Problem, many_heads, sized, slug
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings, registry
from benchmarks.measure.machine import FAST_BFLOAT16, cpu_flags
from benchmarks.measure.results import CaseResult, Target

LONG, USUAL, SHORT = 65_536, 16_384, 512
USUAL_ON_GPU, FEW_HEADS, WIDTHS = 4_096, 8, (32, 128)
OURS = (LINEAR_CPU, LINEAR)
ONE_THREAD, TWO_THREADS = f"{LINEAR_CPU}, one thread", f"{LINEAR_CPU}, two threads"
BFLOAT16 = f"{LINEAR_CPU}, bfloat16"
FASTER_THAN_PEER, RATE_OF_FEW_HEADS = 10, 0.6

gpu_case = functools.partial(Case, device="cuda", seconds=1.5, rounds=(3, 20))


def _rivals_case(
    what: str,
    problem: Problem,
    backward: bool,
    names: Sequence[str],
    *targets: Target,
    make: Callable[..., Case] = Case,
    **fields: Any,
) -> Case:
    """Methods side by side, in a case that `make` makes with `fields` and what follows."""
    kind = "Causal" if problem.causal else "Not causal"
    return make(
        f"operator/{what}/{slug(backward)}",
        shows=f"{kind} attention, {PASSES[backward]}, {problem}: {', '.join(names)}.",
        setup=lambda settings, _: {
            name: functools.partial(
                method, name, sized(problem, settings), settings, backward=backward
            )
            for name in names
        },
        targets=targets,
        **fields,
    )


def _one_head_case(backward: bool) -> Case:
    whole = Problem(LONG, heads=1)

    def make(threads: int, settings: Settings) -> Method:
        if threads > settings.threads:
            raise NotMeasured("the run was given one thread (--threads)")
        problem = sized(whole, settings)
        return method(LINEAR_CPU, problem, settings, backward=backward, threads=threads)

    return Case(
        f"operator/one-head/{slug(backward)}",
        shows=f"One head, {PASSES[backward]}, causal, {whole}: the sequence itself is shared among "
        "threads.",
        setup=lambda settings, _: {
            ONE_THREAD: functools.partial(make, 1, settings),
            TWO_THREADS: functools.partial(make, 2, settings),
        },
        targets=(Target.faster(TWO_THREADS, ONE_THREAD, 1.8),),
        seconds=10,
    )


def half_case() -> Case:
    """bfloat16 beside float32; more is promised where the machine has instructions for it."""
    whole = Problem(USUAL)

    def setup(settings: Settings, _: Sequence[CaseResult]) -> dict[str, Make]:
        full = sized(whole, settings)
        half = dataclasses.replace(full, dtype=torch.bfloat16)
        return {
            name: functools.partial(method, LINEAR_CPU, problem, settings, backward=False)
            for name, problem in ((LINEAR_CPU, full), (BFLOAT16, half))
        }

    to_reach = 1.5 if FAST_BFLOAT16 & cpu_flags() else 1
    return Case(
        "operator/bfloat16/forward",
        shows=f"Causal linear attention, forward, {whole}: bfloat16 tensors beside float32.",
        setup=setup,
        targets=(Target.faster(BFLOAT16, LINEAR_CPU, to_reach),),
        seconds=10,
    )


def _few_heads_case(backward: bool) -> Case:
    names = {
        heads: f"{LINEAR_CUDA}, {heads} head{'s' if heads > 1 else ''}"
        for heads in (HEADS, FEW_HEADS, 1)
    }

    def make(heads: int, settings: Settings) -> Method:
        problem = sized(many_heads(LONG, heads=heads), settings)
        return method(LINEAR_CUDA, problem, settings, backward=backward, units=heads * LONG)

    return gpu_case(
        f"operator/few-heads/{slug(backward)}",
        shows=f"One sequence of N={LONG:,}, {PASSES[backward]}, with few heads and with many.",
        setup=lambda settings, _: {
            name: functools.partial(make, heads, settings) for heads, name in names.items()
        },
        targets=(
            Target(
                f"rate of {FEW_HEADS} heads over that of {HEADS}", names[HEADS], names[FEW_HEADS],
                at_least=RATE_OF_FEW_HEADS,
            ),
        ),
        unit="position and head",
    )  # fmt: skip


def _cpu_cases() -> list[Case]:
    usual, narrow = Problem(USUAL), Problem(USUAL, width=32)
    rivals = functools.partial(Target.faster, LINEAR_CPU)
    of_torch = Target.faster(LINEAR, FAST_TRANSFORMERS, 2)
    share = Target(f"{LINEAR_CPU}: share of the GEMM rate", LINEAR_CPU, at_least=0.7, of_gemm=True)
    peer, both = (*OURS, FAST_TRANSFORMERS), (*OURS, FAST_TRANSFORMERS, SDPA)
    return [
        _rivals_case(
            "rivals", usual, False, both, rivals(FAST_TRANSFORMERS, 20), rivals(LINEAR, 8),
            Target.faster(LINEAR, SDPA, 12), of_torch, share, seconds=40,
        ),
        _rivals_case(
            "rivals", usual, True, both, rivals(FAST_TRANSFORMERS, 14), rivals(LINEAR, 6), of_torch,
            seconds=45,
        ),
        _rivals_case(
            "rivals-of-width-32", narrow, False, peer, rivals(FAST_TRANSFORMERS, 20),
            rivals(LINEAR, 11), seconds=15,
        ),
        _rivals_case(
            "rivals-of-width-32", narrow, True, peer, rivals(FAST_TRANSFORMERS, 15),
            rivals(LINEAR, 8), seconds=20,
        ),
        _rivals_case(
            "rivals-at-512", Problem(SHORT), False, both, rivals(FAST_TRANSFORMERS, 10),
            rivals(LINEAR, 4.5), rivals(SDPA, 4.6), seconds=10,
        ),
        _rivals_case(
            "rivals-not-causal", Problem(USUAL, causal=False), True, peer,
            rivals(FAST_TRANSFORMERS, 4), rivals(LINEAR, 4), seconds=20,
        ),
        *map(_one_head_case, PASSES),
        half_case(),
    ]  # fmt: skip


def _gpu_cases(backward: bool) -> list[Case]:
    faster = functools.partial(Target.faster, LINEAR_CUDA)
    rivals = functools.partial(_rivals_case, make=gpu_case)
    full, half = (many_heads(USUAL_ON_GPU, dtype=x) for x in (torch.float32, torch.float16))
    widths = [
        rivals(
            f"width-{width}",
            many_heads(USUAL_ON_GPU, width=width, heads=HEADS * WIDTH // width),
            backward,
            (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, LINEAR, SDPA),
            faster(FLASH_LINEAR_ATTENTION, 1),
        )
        for width in WIDTHS
    ]
    names = (LINEAR_CUDA, FAST_TRANSFORMERS, LINEAR, SDPA)
    peer = faster(FAST_TRANSFORMERS, FASTER_THAN_PEER)
    return [
        _few_heads_case(backward),
        *widths,
        rivals("float32", full, backward, names, peer),
        rivals("float16", half, backward, (LINEAR_CUDA, LINEAR, SDPA)),
    ]


for _case in (*_cpu_cases(), *_gpu_cases(False), *_gpu_cases(True)):
    registry.add(_case)
