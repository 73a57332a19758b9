"""Figure 1 of the paper: time and peak memory of a sample against its length, for every rival.

On a GPU once for each pass, with tens of heads; on a CPU both passes together. And the crossover:
from which length on linear attention wins, by width and number of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.case import Case
from benchmarks.cases.methods import attention_case
from benchmarks.cases.operator import GPU
from benchmarks.cases.operators import (
    LINEAR,
    LINEAR_CPU,
    LINEAR_CUDA,
    LSH_ROUNDS,
    MATERIALIZED,
    SDPA,
)
from benchmarks.cases.peers import FAST_TRANSFORMERS, FLASH_LINEAR_ATTENTION
from benchmarks.cases.problem import HEADS, POSITIONS, Problem, many_heads

METHODS = (LINEAR_CPU, LINEAR, *LSH_ROUNDS, MATERIALIZED, SDPA)
ON_GPU = (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, FAST_TRANSFORMERS, *METHODS[1:])
LENGTHS = tuple(2**power for power in range(9, 17))
# The same number of positions, batch times length, until the batch is 1.
POSITIONS_ON_CPU, WIDTH_ON_CPU = 8_192, 32
SAMPLE_SECONDS = 0.3  # methods differ by orders of magnitude: the short ones are timed often
CROSSOVER_WIDTHS, CROSSOVER_HEADS = (32, 64, 128), (1, 8, 64)
CROSSOVER_LENGTHS = (64, 128, 256, 512, 1_024, 2_048, 4_096)


def problem_on_cpu(length: int) -> Problem:
    """The heads of the paper's MNIST model; the batch shrinks as the length grows."""
    batch = max(1, POSITIONS_ON_CPU // length)
    return Problem(length, batch=batch, width=WIDTH_ON_CPU, backward=True)


def per_sample(
    name: str, problem: Problem, names: Sequence[str], series: str, **fields: Any
) -> Case:
    """Every method at one length."""
    return attention_case(
        f"lengths/{name}",
        f"Causal attention, {problem.passes}, {problem}: time and peak memory of a sample.",
        {each: (each, problem) for each in names},
        series=f"causal, {problem.passes}, {series}, per sample", at=problem.length,
        units=lambda problem: problem.batch, unit="sample", peaks=True, **fields,
    )  # fmt: skip


def on_cpu(length: int) -> Case:
    """Both passes."""
    return per_sample(
        str(length), problem_on_cpu(length), METHODS,
        f"8 heads of {WIDTH_ON_CPU}, batch {POSITIONS_ON_CPU:,} / N or 1, float32",
        seconds=10, rounds=(3, 5), sample_seconds=SAMPLE_SECONDS,
    )  # fmt: skip


def on_gpu(problem: Problem) -> Case:
    """One of the passes."""
    series = f"{HEADS} heads, {POSITIONS:,} positions in all, bfloat16"
    return per_sample(f"{problem.slug}/{problem.length}", problem, ON_GPU, series, **GPU)


def make_crossover_case(problem: Problem) -> Case:
    """Every method at one length; one table shows the crossover of all series."""
    return attention_case(
        f"crossover/d{problem.width}-h{problem.heads}/{problem.length}",
        f"Causal attention, {problem.passes}, {problem}.",
        {name: (name, problem) for name in METHODS},
        series=f"D=M={problem.width}, H={problem.heads}", at=problem.length,
        seconds=1.0, rounds=(3, 3), sample_seconds=SAMPLE_SECONDS,
    )  # fmt: skip


CASES = (
    *map(on_cpu, LENGTHS),
    *(on_gpu(many_heads(n, backward=each)) for each in (False, True) for n in LENGTHS),
    *(
        make_crossover_case(Problem(length, heads=heads, width=width, backward=True))
        for width in CROSSOVER_WIDTHS
        for heads in CROSSOVER_HEADS
        for length in CROSSOVER_LENGTHS
    ),
)
