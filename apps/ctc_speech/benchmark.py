"""Seconds per epoch at the paper's shape, and the cost of an update by the length of utterances.

    python apps/ctc_speech/benchmark.py
    python apps/ctc_speech/benchmark.py --lengths 200 800 2400 --rounds 5
    python apps/ctc_speech/benchmark.py --resume

The models of the paper's table 3, with random weights: 9 layers on each frame of audio, without
convolutions. Their input is noise, 800 frames per utterance on average and 2,400 at most; an update
is a batch's forward and backward pass and the optimizer's step. An epoch is WSJ's 37,416
utterances. For the curves every update has about --frames frames, in fewer utterances the longer
they are. Each model has a process of its own, the processes take turns, and times are medians over
the rounds; what cannot be measured has a dash, and the reason below the table.

After each batch points.json is written. With --resume and the same flags a measurement that was
interrupted continues: batches that are in the file are not measured again.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.interruption  # noqa: F401  (before torch)

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pydantic
import torch
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_lab.plots import plot_panels
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models.files import replace_file
from linattn_models.training import environment, write_json
from speech.costs import benchmark_document, cost_panels
from speech.models import APP
from speech.presets import ATTENTIONS, PRESETS, Attention, Recipe
from speech.timing import Cost, Worker, make_typical_lengths, measure_costs, measure_feature_speed

LENGTHS = (200, 400, 800, 1_600, 2_400, 5_000, 10_000)


@dataclasses.dataclass(frozen=True)
class Flags:
    """Time the updates of linear, softmax and LSH attention and of the Bi-LSTM."""

    preset: Literal["paper", "smoke"] = "paper"
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
    resume: bool = False
    """Continue the measurement in --out."""
    out: Path = Path("runs", APP, "benchmark")
    """Folder for benchmark.md, benchmark.json, costs.png and points.json."""

    def recipe(self, attention: Attention) -> Recipe:
        """The model, as the paper has it: on each frame, without convolutions."""
        return dataclasses.replace(
            PRESETS[self.preset](attention), subsampling=1, depthwise_kernel=0
        )

    def settings(self) -> dict[str, Any]:
        """What the points of a measurement have in common."""
        threads = self.threads or torch.get_num_threads()
        shared = {"preset": self.preset, "rounds": self.rounds, "threads": threads}
        return {**shared, "attentions": list(self.attentions)}


class Points(pydantic.BaseModel):
    """The content of points.json."""

    settings: dict[str, Any]
    costs: list[Cost] = []


def main(flags: Flags) -> None:
    """Measures, prints the tables, and writes them."""
    check(flags)
    flags.out.mkdir(parents=True, exist_ok=True)  # refused now, not after all timing
    epoch = make_typical_lengths(flags.batch_size, flags.batches)
    curve = [[length] * max(1, flags.frames // length) for length in flags.lengths]
    costs = measure(flags, [*epoch, *curve])
    of_epoch, of_curve = ([of for of in costs if of.lengths in x] for x in (epoch, curve))
    record = {
        "app": APP,
        "preset": flags.preset,
        "rounds": flags.rounds,
        "feature_speed": measure_feature_speed(),
        "environment": environment(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "epoch": [cost.model_dump() for cost in of_epoch],
        "curve": [cost.model_dump() for cost in of_curve],
    }
    write_json(flags.out / "benchmark.json", record, compact=True)
    text = benchmark_document(of_epoch, of_curve, record)
    replace_file(flags.out / "benchmark.md", text.encode())
    plot_panels(flags.out / "costs.png", cost_panels(of_curve), log_scale=True)
    print(text)


def check(flags: Flags) -> None:
    """Refuses numbers that are out of range."""
    least = {"batch_size": 1, "batches": 1, "rounds": 1, "frames": 1, "threads": 1}
    require_at_least(flags, {**least, "lengths": 100})
    if not flags.attentions:
        raise ValueError(expected("--attentions", "one name or more", "none"))


def measure(flags: Flags, batches: list[list[int]]) -> list[Cost]:
    """The costs of each batch; they are stored as soon as they are measured."""
    file = flags.out / "points.json"
    points = Points(settings=flags.settings())
    if flags.resume and file.exists():
        points = read_points(file, flags.settings())
    with ExitStack() as stack:
        workers = {
            attention: stack.enter_context(
                Worker(flags.recipe(attention), points.settings["threads"])
            )
            for attention in flags.attentions
        }
        measured = [cost.lengths for cost in points.costs]
        for lengths in tqdm([x for x in batches if x not in measured], desc="timing", unit="batch"):
            points.costs += measure_costs(workers, lengths, flags.rounds)
            write_json(file, points.model_dump())
    return [cost for lengths in batches for cost in points.costs if cost.lengths == lengths]


def read_points(file: Path, settings: dict[str, Any]) -> Points:
    """The points of a measurement that was interrupted."""
    try:
        points = Points.model_validate_json(file.read_bytes())
    except ValueError:
        advice = "leave --resume out"
        raise ValueError(expected(str(file), "measured costs", "a damaged file", advice)) from None
    if points.settings != settings:
        advice = "give the same flags, or leave --resume out"
        raise ValueError(expected(str(file), str(settings), str(points.settings), advice))
    return points


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
