"""Seconds per epoch at the paper's shape, and the cost of an update by the length of utterances.

    python apps/ctc_speech/benchmark.py
    python apps/ctc_speech/benchmark.py --lengths 200 800 2400 --rounds 5

The models of the paper's table 3, with random weights: 9 layers on each frame of audio, without
convolutions. Their input is noise, 800 frames per utterance on average and 2,400 at most; an update
is a batch's forward and backward pass and the optimizer's step. An epoch is WSJ's 37,416
utterances. For the curves every update has about --frames frames, in fewer utterances the longer
they are. Each model has a process of its own, the processes take turns, and times are medians over
the rounds; what cannot be measured has a dash, and the reason below the table.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.interruption  # noqa: F401  (before torch)

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_models.files import replace_file
from linattn_models.training import (
    parse_flags,
    plot_panels,
    require_at_least,
    run_script,
    write_json,
)
from speech.costs import benchmark_document, cost_panels
from speech.measuring import Cost, Worker, costs, feature_speed, typical_lengths, where_it_runs
from speech.models import APP
from speech.presets import ATTENTIONS, Attention, PresetName, Recipe, paper, smoke

LENGTHS = (200, 400, 800, 1_600, 2_400, 5_000, 10_000)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Time the updates of linear, softmax and LSH attention and of the Bi-LSTM."""

    preset: PresetName = "paper"
    """Size of the models: paper, or smoke for tiny ones."""
    attentions: tuple[Attention, ...] = ATTENTIONS
    """What is timed; lstm is the Bi-LSTM."""
    batch_size: int = 4
    """Utterances of an update, for the seconds per epoch."""
    batches: int = 6
    """Batches that represent an epoch, from short utterances to long ones."""
    lengths: tuple[int, ...] = LENGTHS
    """Frames of an utterance, for the curves."""
    frames: int = 10_000
    """Frames of an update, for the curves."""
    rounds: int = 3
    """Turns that each model has."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""
    out: Path = Path("runs", APP, "benchmark")
    """Folder for benchmark.md, benchmark.json and costs.png."""

    def recipe(self, attention: Attention) -> Recipe:
        """The model, as the paper has it: on each frame, without convolutions."""
        recipe = (paper if self.preset == "paper" else smoke)(attention)
        return dataclasses.replace(recipe, subsampling=1, depthwise_kernel=0)


def main(flags: Flags) -> None:
    """Measures, prints the tables, and writes them."""
    check(flags)
    flags.out.mkdir(parents=True, exist_ok=True)  # refused now, not after all timing
    epoch = typical_lengths(flags.batch_size, flags.batches)
    curve = [[length] * max(1, flags.frames // length) for length in flags.lengths]
    of_epoch, of_curve = measured(flags, (epoch, curve))
    record = {
        "app": APP,
        "preset": flags.preset,
        "rounds": flags.rounds,
        "feature_speed": feature_speed(),
        "environment": where_it_runs(),
        "epoch": as_json(flags.attentions, epoch, of_epoch),
        "curve": as_json(flags.attentions, curve, of_curve),
    }
    text = benchmark_document(record)
    write_json(flags.out / "benchmark.json", record)
    replace_file(flags.out / "benchmark.md", text.encode())
    plot_panels(flags.out / "costs.png", cost_panels(record), log_scale=True)
    print(text)


def check(flags: Flags) -> None:
    """Refuses numbers that are out of range."""
    least = {"batch_size": 1, "batches": 1, "rounds": 1, "frames": 1, "threads": 1}
    require_at_least(flags, least)
    if min(flags.lengths, default=0) < 100:
        named = " ".join(map(str, flags.lengths)) or "none"
        raise ValueError(expected("--lengths", "numbers of at least 100", named))
    if not flags.attentions:
        raise ValueError(expected("--attentions", "one name or more", "none"))
    if flags.preset == "laptop":
        raise ValueError(expected("--preset", "paper or smoke", "laptop"))


def measured(flags: Flags, parts: Sequence[Sequence[Sequence[int]]]) -> list[list[list[Cost]]]:
    """For each part, for each attention, the cost of each batch."""
    threads = flags.threads or torch.get_num_threads()
    total = flags.rounds * sum(map(len, parts)) * len(flags.attentions)
    with ExitStack() as stack, tqdm(total=total, desc="timing", unit="update") as progress:
        workers = [
            stack.enter_context(Worker(flags.recipe(attention), threads))
            for attention in flags.attentions
        ]
        return [costs(workers, batches, flags.rounds, progress) for batches in parts]


def as_json(
    attentions: Sequence[Attention], batches: Sequence[Sequence[int]], found: list[list[Cost]]
) -> list[dict[str, object]]:
    """A record for each attention and batch."""
    return [
        {"attention": attention, "lengths": list(lengths), **dataclasses.asdict(cost)}
        for attention, of in zip(attentions, found, strict=True)
        for lengths, cost in zip(batches, of, strict=True)
    ]


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
