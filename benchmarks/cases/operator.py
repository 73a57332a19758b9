"""The operator alone: its scaling in N, its rivals, its threads, half precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FAST_TRANSFORMERS_KERNEL,
    LINEAR,
    LINEAR_CPU,
    SDPA,
    Problem,
    method,
    on_threads,
)
from benchmarks.machine import cpu_flags
from benchmarks.registry import Absent, Case, Method, Settings, Target, registry

SHORT, LONG, USUAL, FEW = 4_096, 65_536, 16_384, 512
QUICK_DIVISOR = 64
PASSES = {False: "forward", True: "forward and backward"}
OURS = (LINEAR_CPU, LINEAR)
PEERS = (FAST_TRANSFORMERS, FAST_TRANSFORMERS_KERNEL)
ONE_THREAD, TWO_THREADS = f"{LINEAR_CPU}, one thread", f"{LINEAR_CPU}, two threads"
BFLOAT16 = f"{LINEAR_CPU}, bfloat16"
# Instructions that multiply bfloat16 faster than float32.
FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})


def _scaled(problem: Problem, settings: Settings) -> Problem:
    if not settings.quick:
        return problem
    return dataclasses.replace(problem, length=problem.length // QUICK_DIVISOR)


def _at(name: str, length: int) -> str:
    return f"{name}, N={length:,}"


def _scaling(backward: bool, settings: Settings) -> list[Method | Absent]:
    return [
        dataclasses.replace(
            method(
                name,
                _scaled(Problem(length), settings),
                backward=backward,
                settings=settings,
                per_position=True,
            ),
            name=_at(name, length),
        )
        for name in OURS
        for length in (SHORT, LONG)
    ]


def _scaling_case(backward: bool) -> Case:
    return Case(
        f"operator/scaling/{_slug(backward)}",
        shows=f"Causal linear attention, {PASSES[backward]}: the time per position does not "
        "grow with N (B=1, H=8, D=M=64, float32).",
        setup=lambda settings: _scaling(backward, settings),
        targets=tuple(
            Target(
                f"{name}: time per position at N=65,536 over N=4,096",
                _at(name, LONG),
                _at(name, SHORT),
                at_most=1.5,
            )
            for name in OURS
        ),
        unit="position",
        seconds=20,
    )


def _rivals_case(
    name: str,
    problem: Problem,
    backward: bool,
    rivals: Sequence[str],
    targets: tuple[Target, ...],
    seconds: float,
) -> Case:
    kind = "Causal" if problem.causal else "Not causal"
    return Case(
        f"operator/{name}/{_slug(backward)}",
        shows=f"{kind} attention, {PASSES[backward]}, N={problem.length:,} "
        f"(B=1, H=8, D=M={problem.width}, float32), beside {', '.join(rivals)}.",
        setup=lambda settings: [
            method(each, _scaled(problem, settings), backward=backward, settings=settings)
            for each in (*OURS, *rivals)
        ],
        targets=targets,
        seconds=seconds,
    )


def _one_head(backward: bool, settings: Settings) -> list[Method | Absent]:
    problem = _scaled(Problem(LONG, heads=1), settings)
    made = method(LINEAR_CPU, problem, backward=backward, settings=settings)
    one = dataclasses.replace(on_threads(made, 1), name=ONE_THREAD)
    if settings.threads < 2:
        return [one, Absent(TWO_THREADS, "the run was given one thread (--threads)")]
    return [one, dataclasses.replace(on_threads(made, 2), name=TWO_THREADS)]


def _one_head_case(backward: bool) -> Case:
    return Case(
        f"operator/one-head/{_slug(backward)}",
        shows=f"One head, {PASSES[backward]}, causal, N=65,536 (B=1, H=1, D=M=64, float32): the "
        "sequence itself is shared among threads.",
        setup=lambda settings: _one_head(backward, settings),
        targets=(Target.faster(TWO_THREADS, ONE_THREAD, 1.8),),
        seconds=10,
    )


def _half(settings: Settings) -> list[Method | Absent]:
    full = _scaled(Problem(USUAL), settings)
    half = dataclasses.replace(full, dtype=torch.bfloat16)
    made = method(LINEAR_CPU, half, backward=False, settings=settings)
    return [
        method(LINEAR_CPU, full, backward=False, settings=settings),
        dataclasses.replace(made, name=BFLOAT16),
    ]


def _half_case() -> Case:
    to_reach = 1.5 if FAST_BFLOAT16 & cpu_flags() else 1
    return Case(
        "operator/bfloat16/forward",
        shows="Causal linear attention, forward, N=16,384 (B=1, H=8, D=M=64): bfloat16 tensors "
        "beside float32.",
        setup=_half,
        targets=(Target.faster(BFLOAT16, LINEAR_CPU, to_reach),),
        seconds=10,
    )


def _slug(backward: bool) -> str:
    return PASSES[backward].replace(" ", "-")


def _faster(rivals: dict[str, float], ours: str = LINEAR_CPU) -> tuple[Target, ...]:
    return tuple(Target.faster(ours, rival, at_least) for rival, at_least in rivals.items())


for _backward in PASSES:
    registry.add(_scaling_case(_backward))
registry.add(
    _rivals_case(
        "rivals", Problem(USUAL), False, (*PEERS, SDPA),
        (
            *_faster({FAST_TRANSFORMERS: 20, LINEAR: 8}),
            Target(f"{LINEAR_CPU}: share of the GEMM rate", LINEAR_CPU, at_least=0.7, of_gemm=True),
            *_faster({SDPA: 12, FAST_TRANSFORMERS: 2}, LINEAR),
        ),
        seconds=40,
    )
)  # fmt: skip
registry.add(
    _rivals_case(
        "rivals", Problem(USUAL), True, (*PEERS, SDPA),
        (*_faster({FAST_TRANSFORMERS: 14, LINEAR: 6}), *_faster({FAST_TRANSFORMERS: 2}, LINEAR)),
        seconds=45,
    )
)  # fmt: skip
registry.add(
    _rivals_case(
        "rivals-of-width-32", Problem(USUAL, width=32), False, PEERS,
        _faster({FAST_TRANSFORMERS: 20, LINEAR: 11}),
        seconds=15,
    )
)  # fmt: skip
registry.add(
    _rivals_case(
        "rivals-of-width-32", Problem(USUAL, width=32), True, PEERS,
        _faster({FAST_TRANSFORMERS: 15, LINEAR: 8}),
        seconds=20,
    )
)  # fmt: skip
registry.add(
    _rivals_case(
        "rivals-at-512", Problem(FEW), False, (*PEERS, SDPA),
        _faster({FAST_TRANSFORMERS: 10, LINEAR: 4.5, SDPA: 4.6}),
        seconds=10,
    )
)  # fmt: skip
registry.add(
    _rivals_case(
        "rivals-not-causal", Problem(USUAL, causal=False), True, (FAST_TRANSFORMERS,),
        _faster({FAST_TRANSFORMERS: 4, LINEAR: 4}),
        seconds=20,
    )
)  # fmt: skip
for _backward in PASSES:
    registry.add(_one_head_case(_backward))
registry.add(_half_case())
