"""Figure 1 of the paper: time and peak memory of a sample against its length, for every rival.

On a GPU once for each pass, with tens of heads; on a CPU both passes together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    LINEAR,
    LINEAR_CPU,
    LINEAR_CUDA,
    MATERIALIZED,
    SDPA,
    least_bytes,
    method,
)
from benchmarks.cases.lsh import LSH_ROUNDS
from benchmarks.cases.memory import peak
from benchmarks.cases.operator import FASTER_THAN_PEER, gpu_case
from benchmarks.cases.problem import (
    HEADS,
    PASSES,
    POSITIONS,
    Problem,
    many_heads,
    sized,
    slug,
)
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.ledger import Ledger
from benchmarks.measure.results import CaseResult, Target

METHODS = (LINEAR_CPU, LINEAR, *LSH_ROUNDS, MATERIALIZED, SDPA)
# On a GPU by pass: figure 1 of the paper has both passes and all rivals.
_OURS_AND_PEERS = (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, FAST_TRANSFORMERS, LINEAR)
ON_GPU = {
    False: (*_OURS_AND_PEERS, SDPA),
    True: (*_OURS_AND_PEERS, "lsh-1", "lsh-4", MATERIALIZED, SDPA),
}
LENGTHS = tuple(2**power for power in range(9, 17))
# As many positions at every length that has room for more than one sample.
POSITIONS_ON_CPU, WIDTH_ON_CPU = 8_192, 32
LSH_FASTER_AT, LSH_FASTER = 16_384, 3  # than softmax, so that LSH is a serious rival
SHORT_SECONDS = 0.3
# To reach on a GPU, by pass: the share of the copy bandwidth from this length on.
SHARE_OF_COPY, SHARE_FROM = {False: 0.7, True: 0.5}, 2_048
FASTER_THAN_SOFTMAX_FROM, ALMOST = 1_024, 1 / 1.1


def problem_of(length: int, settings: Settings) -> Problem:
    """The heads of the paper's MNIST model; the batch shrinks as the length grows."""
    batch = max(1, POSITIONS_ON_CPU // length)
    return sized(Problem(length, batch=batch, width=WIDTH_ON_CPU), settings)


def _cpu_case(length: int) -> Case:
    lsh = (Target.faster("lsh-1", SDPA, LSH_FASTER),) if length == LSH_FASTER_AT else ()
    return Case(
        f"lengths/{length}",
        shows=f"Causal attention, forward and backward, N={length:,}: time and peak resident "
        "memory of a sample (H=8, D=M=32, float32).",
        setup=functools.partial(_setup, length, True, METHODS),
        targets=lsh,
        unit="sample",
        seconds=10,
        rounds=(1, 5),
        short_seconds=SHORT_SECONDS,
        series="causal, forward and backward, H=8, D=M=32, float32, per sample",
        at=length,
    )


def _gpu_case(length: int, backward: bool) -> Case:
    return gpu_case(
        f"lengths/{slug(backward)}/{length}",
        shows=f"Causal attention, {PASSES[backward]}, {many_heads(length)}.",
        setup=functools.partial(_setup, length, backward, ON_GPU[backward], on_gpu=True),
        targets=_gpu_targets(length, backward),
        unit="sample",
        series=f"causal, {PASSES[backward]}, {HEADS} heads, B N = {POSITIONS:,}, bfloat16, "
        "per sample",
        at=length,
    )


def _setup(
    length: int,
    backward: bool,
    names: Sequence[str],
    settings: Settings,
    earlier: Sequence[CaseResult],
    *,
    on_gpu: bool = False,
) -> dict[str, Make]:
    ledger = Ledger(earlier, settings, memory_growth={MATERIALIZED: 2})
    problem = sized(many_heads(length), settings) if on_gpu else problem_of(length, settings)
    # A quick run does not start a process for every method of every length.
    apart = not on_gpu and not (settings.quick and length != LENGTHS[0])

    def make(name: str) -> Method:
        ledger.require(name, length, problem.batch, least_bytes(name, problem))
        made = method(name, problem, settings, backward=backward, units=problem.batch)
        if not apart:
            return made
        return dataclasses.replace(made, peak=lambda: peak(name, problem, backward, settings))

    return {name: functools.partial(make, name) for name in names}


def _gpu_targets(length: int, backward: bool) -> tuple[Target, ...]:
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


for _length in LENGTHS:
    registry.add(_cpu_case(_length))
for _backward in PASSES:
    for _length in LENGTHS:
        registry.add(_gpu_case(_length, _backward))
