"""The causal operator in plain torch: its scaling in N, and its rivals at N = 16,384."""

from __future__ import annotations

import dataclasses

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FAST_TRANSFORMERS_KERNEL,
    LINEAR,
    SDPA,
    Sizes,
    method,
)
from benchmarks.registry import Absent, Case, Method, Settings, Target, registry

SHORT, LONG, USUAL = 4_096, 65_536, 16_384
QUICK_DIVISOR = 64
PASSES = {False: "forward", True: "forward and backward"}
METHODS = (LINEAR, FAST_TRANSFORMERS, FAST_TRANSFORMERS_KERNEL, SDPA)


def _scaling(backward: bool, settings: Settings) -> list[Method | Absent]:
    return [_linear_at(length, backward, settings) for length in (SHORT, LONG)]


def _linear_at(length: int, backward: bool, settings: Settings) -> Method | Absent:
    sizes = _sizes(length, settings)
    made = method(LINEAR, sizes, backward=backward, settings=settings, per_position=True)
    return dataclasses.replace(made, name=_at(length))


def _rivals(backward: bool, settings: Settings) -> list[Method | Absent]:
    sizes = _sizes(USUAL, settings)
    return [method(name, sizes, backward=backward, settings=settings) for name in METHODS]


def _sizes(length: int, settings: Settings) -> Sizes:
    return Sizes(length // QUICK_DIVISOR) if settings.quick else Sizes(length)


def _at(length: int) -> str:
    return f"{LINEAR}, N={length:,}"


def _scaling_case(backward: bool) -> Case:
    return Case(
        f"operator/scaling/{PASSES[backward].replace(' ', '-')}",
        shows=f"Causal linear attention, {PASSES[backward]}: the time per position does not "
        "grow with N (B=1, H=8, D=M=64, float32).",
        setup=lambda settings: _scaling(backward, settings),
        targets=(
            Target(
                "time per position at N=65,536 over N=4,096", _at(LONG), _at(SHORT), at_most=1.5
            ),
        ),
        unit="position",
        seconds=30,
    )


def _rivals_case(backward: bool, targets: tuple[Target, ...]) -> Case:
    return Case(
        f"operator/rivals/{PASSES[backward].replace(' ', '-')}",
        shows=f"Causal attention, {PASSES[backward]}, N=16,384 (B=1, H=8, D=M=64, float32), "
        "beside softmax and the paper's own library, as built by pip.",
        setup=lambda settings: _rivals(backward, settings),
        targets=targets,
        seconds=60,
    )


def _faster_than(rival: str, at_least: float) -> Target:
    return Target(f"times faster than {rival}", rival, LINEAR, at_least=at_least)


registry.add(_scaling_case(backward=False))
registry.add(_scaling_case(backward=True))
registry.add(_rivals_case(False, (_faster_than(SDPA, 12), _faster_than(FAST_TRANSFORMERS, 2))))
registry.add(_rivals_case(True, (_faster_than(FAST_TRANSFORMERS, 2),)))
