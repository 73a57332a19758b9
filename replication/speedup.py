"""How large the speed-up of generation is, over length and batch: python -m replication.speedup.

The paper's MNIST model, with random weights and as many positions as asked for, generates by three
ways: linear attention as an RNN (its steps in PyTorch, and compiled where a backend can), softmax
with a cache of keys and values, and softmax that runs the whole prefix again for every token. A few
positions are timed and the others interpolated, unless --whole is given. A case is left out when
its least time, by its operations and the machine's rates, is above half of --case-seconds.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from benchmarks.measure.cases import Settings
from benchmarks.measure.machine import Limits, measure_limits
from linattn_core.errors import expected
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_lab.throughput import generation_throughput
from linattn_models import AutoregressiveTransformer, MixtureOfLogistics, TransformerConfig
from replication.cost import GRID_BATCHES, GRID_LENGTHS, GRID_SECONDS, MNIST

WAYS: dict[str, tuple[str, Literal["stateful", "rerun"], str]] = {
    "linear": ("linear", "stateful", "eager"),
    "linear-compiled": ("linear", "stateful", "auto"),
    "stateful-softmax": ("softmax", "stateful", "eager"),
    "softmax": ("softmax", "rerun", "eager"),
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """Time generation over length and batch."""

    out: Path
    """Folder for figures.json."""
    lengths: tuple[int, ...] = GRID_LENGTHS
    """Tokens of a sequence."""
    batches: tuple[int, ...] = GRID_BATCHES
    """Sequences side by side."""
    positions: int = 5
    """Positions timed of each sequence."""
    whole: bool = False
    """Time every position, where a state is kept."""
    case_seconds: float = GRID_SECONDS
    """The longest case that is tried."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""


def main(flags: Flags) -> None:
    """Times each case, and writes the figures."""
    check(flags)
    flags.out.mkdir(parents=True, exist_ok=True)  # refused now, not after all timing
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    quick = Settings(quick=max(flags.lengths) < min(Flags.lengths))
    limits = measure_limits(dataclasses.replace(quick, threads=torch.get_num_threads()))
    cases = [(n, way, batch) for n in flags.lengths for way in WAYS for batch in flags.batches]
    figures: dict[str, float] = {}
    for length, way, batch in tqdm(cases, unit="case"):
        seconds = seconds_a_sequence(flags, limits, length, way, batch)
        if seconds is not None:
            figures[f"{way}/{length}/{batch}/seconds"] = seconds
    (flags.out / "figures.json").write_text(json.dumps(figures, indent=1))


def check(flags: Flags) -> None:
    """Refuses numbers out of range."""
    # Two positions are the fewest that can be timed.
    require_at_least(flags, {"positions": 2, "lengths": 2, "batches": 1, "threads": 1})
    if not 0 < flags.case_seconds < math.inf:
        raise ValueError(expected("--case-seconds", "more than 0, finite", flags.case_seconds))


def seconds_a_sequence(
    flags: Flags, limits: Limits, length: int, way: str, batch: int
) -> float | None:
    """Seconds for each of the sequences side by side; None where that would take too long."""
    attention, method, decoder = WAYS[way]
    steps = None if flags.whole and method == "stateful" else min(flags.positions, length)
    shape = dataclasses.replace(MNIST, positions=length)
    known = "stateful-softmax" if way == "stateful-softmax" else attention
    if 2 * shape.generating(known, batch, steps).seconds(limits) > flags.case_seconds:
        return None
    model = paper_model(attention, length)
    timed = generation_throughput(model, batch=batch, method=method, decoder=decoder, steps=steps)
    return timed.seconds_per_sample


def paper_model(attention: str, length: int) -> AutoregressiveTransformer:
    """The paper's MNIST model with random weights, for sequences of this length."""
    config = TransformerConfig(
        num_layers=MNIST.layers, num_heads=MNIST.heads, head_dim=MNIST.head_dim,
        ffn_dim=MNIST.ffn, norm="post",
    )  # fmt: skip
    head = MixtureOfLogistics(10, 1, 256)
    return AutoregressiveTransformer(config.with_attention(attention), head, length).eval()


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
