"""How large the speed-up of generation is, over length and batch: python -m replication.speedup.

The paper's MNIST model, with random weights and as many positions as asked for, generates by three
ways: linear attention as an RNN (its steps in PyTorch, and compiled where a backend can), softmax
with a cache of keys and values, and softmax that runs the whole prefix again for every token. A few
positions are timed and the others interpolated, unless --whole is given. Batches grow until the
next one would take more than --case-seconds, if its time grew as the batch does.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_lab.throughput import generation_throughput
from linattn_models import AutoregressiveTransformer, MixtureOfLogistics, TransformerConfig

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
    lengths: tuple[int, ...] = (64, 256, 784, 1_568, 3_072)
    """Tokens of a sequence."""
    batches: tuple[int, ...] = (1, 8, 64, 256)
    """Sequences side by side."""
    positions: int = 5
    """Positions timed of each sequence."""
    whole: bool = False
    """Time every position, where a state is kept."""
    case_seconds: float = 120.0
    """The longest case that is tried."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""


def main(flags: Flags) -> None:
    """Times each case, and writes the figures."""
    # Two positions are the fewest that can be timed.
    require_at_least(flags, {"positions": 2, "lengths": 2, "batches": 1, "threads": 1})
    if not 0 < flags.case_seconds < math.inf:
        raise ValueError(expected("--case-seconds", "more than 0, finite", flags.case_seconds))
    make_folders(flags.out)
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    figures: dict[str, float] = {}
    curves = [(length, way) for length in flags.lengths for way in WAYS]
    for length, way in tqdm(curves, unit="curve", disable=None):
        for batch, seconds in time_batches(flags, length, way).items():
            figures[f"{way}/{length}/{batch}/seconds"] = seconds
    (flags.out / "figures.json").write_text(json.dumps(figures, indent=1))


def time_batches(flags: Flags, length: int, way: str) -> dict[int, float]:
    """Seconds for each of the sequences side by side, by batch, as far as the time allows."""
    attention, method, decoder = WAYS[way]
    steps = None if flags.whole and method == "stateful" else min(flags.positions, length)
    model = build_model(attention, length)
    seconds: dict[int, float] = {}
    taken, last = 0.0, 1
    for batch in sorted(flags.batches):
        if taken * batch / last > flags.case_seconds:
            break
        started = time.monotonic()
        timed = generation_throughput(
            model, batch=batch, method=method, decoder=decoder, steps=steps
        )
        taken, last = time.monotonic() - started, batch
        seconds[batch] = timed.seconds_per_sample
    return seconds


def build_model(attention: str, length: int) -> AutoregressiveTransformer:
    """The paper's MNIST model with random weights, for sequences of this length."""
    config = TransformerConfig(
        num_layers=8, num_heads=8, head_dim=32, ffn_dim=1_024, norm_first=False
    )
    head = MixtureOfLogistics(10, 1, 256)
    return AutoregressiveTransformer(config.with_attention(attention), head, length).eval()


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
