"""The operator alone: its rivals, its threads, half precision."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    LINEAR,
    LINEAR_CPU,
    SDPA,
    method,
)
from benchmarks.cases.problem import PASSES, Problem, slug
from benchmarks.measure.cases import Case, Make, Method, NotMeasured, Settings, registry
from benchmarks.measure.machine import cpu_flags
from benchmarks.measure.results import CaseResult, Target

LONG, USUAL, FEW = 65_536, 16_384, 512
QUICK_DIVISOR = 64
OURS = (LINEAR_CPU, LINEAR)
PEERS = (FAST_TRANSFORMERS,)
ONE_THREAD, TWO_THREADS = f"{LINEAR_CPU}, one thread", f"{LINEAR_CPU}, two threads"
BFLOAT16 = f"{LINEAR_CPU}, bfloat16"
# Instructions that multiply bfloat16 faster than float32.
FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})


def _scaled(problem: Problem, settings: Settings) -> Problem:
    if not settings.quick:
        return problem
    return dataclasses.replace(problem, length=problem.length // QUICK_DIVISOR)


def _rivals_case(
    name: str,
    problem: Problem,
    backward: bool,
    rivals: Sequence[str],
    targets: Mapping[tuple[str, str], float],
    seconds: float,
    *more: Target,
) -> Case:
    """Args: targets: by how much the first of two methods is to be faster than the second."""
    kind = "Causal" if problem.causal else "Not causal"
    return Case(
        f"operator/{name}/{slug(backward)}",
        shows=f"{kind} attention, {PASSES[backward]}, N={problem.length:,} "
        f"(B=1, H=8, D=M={problem.width}, float32), beside {', '.join(rivals)}.",
        setup=lambda settings, _: {
            each: functools.partial(
                method, each, _scaled(problem, settings), settings, backward=backward
            )
            for each in (*OURS, *rivals)
        },
        targets=(*(Target.faster(*pair, least) for pair, least in targets.items()), *more),
        seconds=seconds,
    )


def _one_head_case(backward: bool) -> Case:
    def make(threads: int, settings: Settings) -> Method:
        if threads > settings.threads:
            raise NotMeasured("the run was given one thread (--threads)")
        problem = _scaled(Problem(LONG, heads=1), settings)
        return method(LINEAR_CPU, problem, settings, backward=backward, threads=threads)

    return Case(
        f"operator/one-head/{slug(backward)}",
        shows=f"One head, {PASSES[backward]}, causal, N=65,536 (B=1, H=1, D=M=64, float32): the "
        "sequence itself is shared among threads.",
        setup=lambda settings, _: {
            ONE_THREAD: functools.partial(make, 1, settings),
            TWO_THREADS: functools.partial(make, 2, settings),
        },
        targets=(Target.faster(TWO_THREADS, ONE_THREAD, 1.8),),
        seconds=10,
    )


def _half(settings: Settings, _: Sequence[CaseResult]) -> dict[str, Make]:
    full = _scaled(Problem(USUAL), settings)
    half = dataclasses.replace(full, dtype=torch.bfloat16)
    return {
        name: functools.partial(method, LINEAR_CPU, problem, settings, backward=False)
        for name, problem in ((LINEAR_CPU, full), (BFLOAT16, half))
    }


def half_case() -> Case:
    """bfloat16 beside float32; more is promised where the machine has instructions for it."""
    to_reach = 1.5 if FAST_BFLOAT16 & cpu_flags() else 1
    return Case(
        "operator/bfloat16/forward",
        shows="Causal linear attention, forward, N=16,384 (B=1, H=8, D=M=64): bfloat16 tensors "
        "beside float32.",
        setup=_half,
        targets=(Target.faster(BFLOAT16, LINEAR_CPU, to_reach),),
        seconds=10,
    )


_CPU_PEER, _CPU_TORCH = (LINEAR_CPU, FAST_TRANSFORMERS), (LINEAR_CPU, LINEAR)
_TORCH_PEER = (LINEAR, FAST_TRANSFORMERS)
_SHARE = Target(f"{LINEAR_CPU}: share of the GEMM rate", LINEAR_CPU, at_least=0.7, of_gemm=True)
_NARROW, _EVERYWHERE = Problem(USUAL, width=32), Problem(USUAL, causal=False)
for _case in (
    _rivals_case(
        "rivals", Problem(USUAL), False, (*PEERS, SDPA),
        {_CPU_PEER: 20, _CPU_TORCH: 8, (LINEAR, SDPA): 12, _TORCH_PEER: 2}, 40, _SHARE,
    ),
    _rivals_case(
        "rivals", Problem(USUAL), True, (*PEERS, SDPA),
        {_CPU_PEER: 14, _CPU_TORCH: 6, _TORCH_PEER: 2}, 45,
    ),
    _rivals_case(
        "rivals-of-width-32", _NARROW, False, PEERS, {_CPU_PEER: 20, _CPU_TORCH: 11}, 15
    ),
    _rivals_case("rivals-of-width-32", _NARROW, True, PEERS, {_CPU_PEER: 15, _CPU_TORCH: 8}, 20),
    _rivals_case(
        "rivals-at-512", Problem(FEW), False, (*PEERS, SDPA),
        {_CPU_PEER: 10, _CPU_TORCH: 4.5, (LINEAR_CPU, SDPA): 4.6}, 10,
    ),
    _rivals_case(
        "rivals-not-causal", _EVERYWHERE, True, (FAST_TRANSFORMERS,),
        {_CPU_PEER: 4, _CPU_TORCH: 4}, 20,
    ),
    *map(_one_head_case, PASSES),
    half_case(),
):  # fmt: skip
    registry.add(_case)
