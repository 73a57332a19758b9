"""The operator on a GPU: figure 1 of the paper, heads few and many, widths, dtypes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    LINEAR,
    LINEAR_CUDA,
    MATERIALIZED,
    SDPA,
    method,
)
from benchmarks.cases.problem import PASSES, Problem, slug
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.ledger import Ledger
from benchmarks.measure.results import CaseResult, Target
from linattn_models.throughput import peak_memory

LENGTHS = tuple(2**power for power in range(9, 17))
POSITIONS, HEADS, WIDTH = 65_536, 64, 64
LONG, USUAL, FEW = 65_536, 4_096, 8
WIDTHS = (32, 128)
QUICK_POSITIONS, QUICK_HEADS = 64, 2

# The methods against the length, by pass: figure 1 of the paper has both passes and all rivals.
OURS_AND_PEERS = (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, FAST_TRANSFORMERS, LINEAR)
ALL = {
    False: (*OURS_AND_PEERS, SDPA),
    True: (*OURS_AND_PEERS, "lsh-1", "lsh-4", MATERIALIZED, SDPA),
}
# To reach, by pass: share of the copy bandwidth where sequences are this long and heads this many.
SHARE_OF_COPY = {False: 0.7, True: 0.5}
SHARE_FROM = 2_048
FASTER_THAN_PEER, FASTER_THAN_SOFTMAX_FROM, ALMOST = 10, 1_024, 1 / 1.1
RATE_OF_FEW_HEADS = 0.6

gpu_case = functools.partial(Case, device="cuda", seconds=1.5, rounds=(3, 20))


def many_heads(
    length: int, *, heads: int = HEADS, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16
) -> Problem:
    """As many positions at every length: the batch is what they leave."""
    return Problem(length, batch=POSITIONS // length, heads=heads, width=width, dtype=dtype)


def scaled(problem: Problem, settings: Settings) -> Problem:
    """The problem on the device of the run, and tiny in a quick one."""
    problem = dataclasses.replace(problem, device=settings.device)
    if not settings.quick:
        return problem
    return dataclasses.replace(
        problem, length=min(problem.length, QUICK_POSITIONS), batch=1,
        heads=min(problem.heads, QUICK_HEADS), width=8,
    )  # fmt: skip


def entry(
    name: str, problem: Problem, settings: Settings, backward: bool, units: float = 1
) -> Method:
    """Returns the operator of that name on the run's device, with the peak of its memory."""
    problem, note = scaled(problem, settings), ""
    if name == FAST_TRANSFORMERS and problem.dtype != torch.float32:
        # It knows no other; its bytes are counted as they are.
        problem, note = dataclasses.replace(problem, dtype=torch.float32), "float32"
    made = method(name, problem, settings, backward=backward, units=units)
    run, device = made.run, torch.device(problem.device)
    assert run is not None  # the operators are timed, they do not measure themselves
    return dataclasses.replace(made, note=note, peak=lambda: peak_memory(device, run)[1])


def _length_case(length: int, backward: bool) -> Case:
    problem = many_heads(length)

    def setup(settings: Settings, earlier: Sequence[CaseResult]) -> dict[str, Make]:
        ledger = Ledger(earlier, settings, memory_growth={MATERIALIZED: 2})
        batch = scaled(problem, settings).batch

        def make(name: str) -> Method:
            ledger.require(name, length, batch)
            return entry(name, problem, settings, backward, units=batch)

        return {name: functools.partial(make, name) for name in ALL[backward]}

    return gpu_case(
        f"lengths/{slug(backward)}/{length}",
        shows=f"Causal attention, {PASSES[backward]}, {size_words(problem)}.",
        setup=setup,
        targets=_length_targets(length, backward),
        unit="sample",
        series=f"causal, {PASSES[backward]}, {HEADS} heads, B N = {POSITIONS:,}, bfloat16, "
        "per sample",
        at=length,
    )


def _length_targets(length: int, backward: bool) -> tuple[Target, ...]:
    shows, share = f"{LINEAR_CUDA}: share of the copy bandwidth", SHARE_OF_COPY[backward]
    targets = [
        Target.faster(LINEAR_CUDA, FLASH_LINEAR_ATTENTION, 1),
        Target.faster(LINEAR_CUDA, FAST_TRANSFORMERS, FASTER_THAN_PEER),
    ]
    if length >= SHARE_FROM:
        targets.insert(0, Target(shows, LINEAR_CUDA, at_least=share, of_copy=True))
    if not backward:
        least = 1 if length >= FASTER_THAN_SOFTMAX_FROM else ALMOST
        targets.append(Target.faster(LINEAR_CUDA, SDPA, least))
    return tuple(targets)


def _few_heads_case(backward: bool) -> Case:
    def of_heads(heads: int) -> str:
        return f"{LINEAR_CUDA}, {heads} head{'s' if heads > 1 else ''}"

    return gpu_case(
        f"operator/few-heads/{slug(backward)}",
        shows=f"One sequence of N={LONG:,}, {PASSES[backward]}, with few heads and with many.",
        setup=lambda settings, _: {
            of_heads(heads): functools.partial(
                entry, LINEAR_CUDA, many_heads(LONG, heads=heads), settings, backward, heads * LONG
            )
            for heads in (HEADS, FEW, 1)
        },
        targets=(
            Target(
                f"rate of {FEW} heads over that of {HEADS}", of_heads(HEADS), of_heads(FEW),
                at_least=RATE_OF_FEW_HEADS,
            ),
        ),
        unit="position and head",
    )  # fmt: skip


def _rivals_case(
    what: str, problem: Problem, backward: bool, names: Sequence[str], *targets: Target
) -> Case:
    return gpu_case(
        f"operator/{what}/{slug(backward)}",
        shows=f"Causal attention, {PASSES[backward]}, {size_words(problem)}.",
        setup=lambda settings, _: {
            name: functools.partial(entry, name, problem, settings, backward) for name in names
        },
        targets=targets,
    )


def size_words(problem: Problem) -> str:
    """The problem as documents name it."""
    return (
        f"N={problem.length:,} (B={problem.batch}, H={problem.heads}, D=M={problem.width}, "
        f"{dtype_name(problem.dtype)})"
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


for _backward in PASSES:
    for _length in LENGTHS:
        registry.add(_length_case(_length, _backward))
    registry.add(_few_heads_case(_backward))
    for _width in WIDTHS:
        registry.add(
            _rivals_case(
                f"width-{_width}",
                many_heads(USUAL, width=_width, heads=HEADS * WIDTH // _width),
                _backward,
                (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, LINEAR, SDPA),
                Target.faster(LINEAR_CUDA, FLASH_LINEAR_ATTENTION, 1),
            )
        )
    registry.add(
        _rivals_case(
            "float32",
            many_heads(USUAL, dtype=torch.float32),
            _backward,
            (LINEAR_CUDA, FAST_TRANSFORMERS, LINEAR, SDPA),
            Target.faster(LINEAR_CUDA, FAST_TRANSFORMERS, FASTER_THAN_PEER),
        )
    )
    _half = many_heads(USUAL, dtype=torch.float16)
    registry.add(_rivals_case("float16", _half, _backward, (LINEAR_CUDA, LINEAR, SDPA)))
