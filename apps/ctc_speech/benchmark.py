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
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
import datetime
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pydantic
import torch
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_lab.machine import default_device, describe_machine
from linattn_lab.plots import Panel, Points, plot_panels
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, require_one_process, run_script
from linattn_lab.store import read_model
from linattn_lab.tables import figure, markdown_table, name_environments, table_of
from linattn_models.files import replace_file
from linattn_models.training import environment, write_json
from speech.models import APP
from speech.presets import ATTENTIONS, PAPER, PRESETS, Attention, Recipe
from speech.timing import Cost, Worker, make_typical_lengths, measure_costs, measure_feature_speed

LENGTHS = (200, 400, 800, 1_600, 2_400, 5_000, 10_000)
UTTERANCES = 37_416  # of WSJ's training set
VALUES: dict[str, Callable[[Cost], float | None]] = {
    "s": lambda cost: cost.median,
    "GB": lambda cost: cost.gigabytes,
}


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
    """Folder for results.md, benchmark.json, costs.png and points.json."""

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


class Measured(pydantic.BaseModel):
    """The content of points.json."""

    settings: dict[str, Any]
    costs: list[Cost] = []


def main(flags: Flags) -> None:
    """Measures, prints the tables, and writes them."""
    require_one_process()
    check(flags)
    make_folders(flags.out)
    batches = make_typical_lengths(flags.batch_size, flags.batches)
    distinct = dict.fromkeys(flags.lengths)
    equal = [[length] * max(1, flags.frames // length) for length in distinct]
    costs = measure(flags, [*batches, *equal])
    epoch = [cost for lengths in batches for cost in costs if cost.lengths == lengths]
    curve = [cost for cost in costs if cost.lengths in equal]
    device = default_device()
    record = {
        "app": APP,
        "date": datetime.date.today().isoformat(),
        "hardware": describe_machine(device).hardware,
        "command": shlex.join(["python", *sys.argv]),
        "preset": flags.preset,
        "rounds": flags.rounds,
        "feature_speed": measure_feature_speed(),
        "environment": environment(torch.device(device)),
        "seconds_per_epoch": {x: epoch_seconds(y) for x, y in by_attention(epoch).items()},
        "epoch": [cost.model_dump() for cost in epoch],
        "curve": [cost.model_dump() for cost in curve],
    }
    write_json(flags.out / "benchmark.json", record, compact=True)
    text = document(epoch, curve, record)
    replace_file(flags.out / "results.md", text.encode())
    panels = [curve_panel(curve, unit) for unit in VALUES]
    plot_panels(flags.out / "costs.png", panels, log_scale=True)
    print(text)


def check(flags: Flags) -> None:
    """Refuses numbers that are out of range."""
    least = {"batch_size": 1, "batches": 1, "rounds": 1, "frames": 1, "threads": 1}
    require_at_least(flags, {**least, "lengths": 100})
    if not flags.attentions:
        raise ValueError(expected("--attentions", "one name or more", "none"))


def measure(flags: Flags, batches: list[list[int]]) -> list[Cost]:
    """The costs of the batches, equal ones once; they are stored as soon as they are measured."""
    file, settings = flags.out / "points.json", flags.settings()
    stored = flags.resume and file.exists()
    measured = read_measured(file, settings) if stored else Measured(settings=settings)
    done = [cost.lengths for cost in measured.costs]
    distinct = [list(x) for x in dict.fromkeys(map(tuple, batches))]
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(closing(Worker(flags.recipe(name), settings["threads"])))
            for name in flags.attentions
        }
        left = [x for x in distinct if x not in done]
        for lengths in tqdm(left, desc="timing", unit="batch", disable=None):
            measured.costs += measure_costs(workers, lengths, flags.rounds)
            write_json(file, measured.model_dump())
    return [cost for cost in measured.costs if cost.lengths in distinct]


def read_measured(file: Path, settings: dict[str, Any]) -> Measured:
    """What an interrupted measurement with the same settings has measured."""
    measured = read_model(file, Measured)
    if measured.settings != settings:
        advice = "give the same flags, or leave --resume out"
        raise ValueError(expected(str(file), str(settings), str(measured.settings), advice))
    return measured


def document(epoch: Sequence[Cost], curve: Sequence[Cost], record: Mapping[str, Any]) -> str:
    """Seconds per epoch, costs by length, and what could not be measured.

    Args:
        epoch: of the batches that represent an epoch.
        curve: of the batches of equal lengths.
        record: the content of benchmark.json.
    """
    where = record["environment"]
    parts = [
        "# What an update of a recognizer costs",
        "![Seconds and memory of an update over the length](costs.png)",
        "Seconds of an update and its memory, by the frames of an utterance. LSH shares queries "
        "and keys, which saves memory.",
        epoch_table(epoch),
        f"An epoch is WSJ's {UTTERANCES:,} utterances; gain: over softmax; GB: the most by which "
        f"memory rose during an update. Medians of {record['rounds']} rounds in which the models "
        f"took turns; preset {record['preset']}; {name_environments([where])}; "
        f"backends: {', '.join(where['backends'])}.",
        curve_table(curve),
        "\n".join(
            f"{cost.attention}, {max(cost.lengths):,} frames: -, since {cost.failure}."
            for cost in (*epoch, *curve)
            if cost.failure
        ),
        f"Features: one core computes the frames of {record['feature_speed']:,.0f} s of audio in "
        "a second.",
        f"Measured on {record['date']}: {record['hardware']}. Made by this command:\n\n"
        f"    {record['command']}",
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def curve_panel(curve: Sequence[Cost], unit: str) -> Panel:
    """Seconds or memory of each model over the frames of an utterance, where they were measured."""
    curves: dict[str, Points] = {
        name: [(cost.lengths[0], y) for cost in costs if (y := VALUES[unit](cost)) is not None]
        for name, costs in by_attention(curve).items()
    }
    return Panel("frames of an utterance", curves, f"{unit} of an update")


def epoch_table(epoch: Sequence[Cost]) -> str:
    """The seconds per epoch of each model, their gain over softmax, and the memory."""
    models = by_attention(epoch)

    def gain(costs: list[Cost], seconds: Callable[[list[Cost]], float | None]) -> str:
        one, other = seconds(models.get("softmax", [])), seconds(costs)
        return "-" if one is None or other is None else f"{figure(one / other)}x"

    def paper(costs: list[Cost]) -> str:
        name = costs[0].attention
        return f"{PAPER[name][1]:,}" if name in PAPER else "-"

    columns: dict[str, Callable[[list[Cost]], str]] = {
        "s per epoch": lambda costs: figure(epoch_seconds(costs)),
        "gain": lambda costs: gain(costs, epoch_seconds),
        "gain, longest batch": lambda costs: gain(costs, lambda of: of[-1].median if of else None),
        "GB": lambda costs: figure(max((x.gigabytes for x in costs if x.gigabytes), default=None)),
        "the paper's s (GPU)": paper,
    }
    return table_of(models, columns, first="model")


def epoch_seconds(costs: Sequence[Cost]) -> float | None:
    """Seconds per epoch, if every batch that represents it was measured."""
    seconds = [cost.median for cost in costs if cost.median is not None]
    if not seconds or len(seconds) < len(costs):
        return None
    return sum(seconds) * UTTERANCES / sum(len(cost.lengths) for cost in costs)


def curve_table(curve: Sequence[Cost]) -> str:
    """Seconds and memory of each model, a row for each length."""
    models = by_attention(curve)
    header = [f"{name}, {unit}" for unit in VALUES for name in models]
    rows = []
    for costs in zip(*models.values(), strict=True):
        lengths = costs[0].lengths
        values = [figure(value(cost)) for value in VALUES.values() for cost in costs]
        rows.append([f"{lengths[0]:,}", str(len(lengths)), *values])
    return markdown_table(["frames", "utterances", *header], rows)


def by_attention(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    """The costs of each model."""
    names = dict.fromkeys(cost.attention for cost in costs)
    return {name: [cost for cost in costs if cost.attention == name] for name in names}


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
