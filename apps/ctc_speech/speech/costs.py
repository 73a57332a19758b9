"""What updates cost, as a document with curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from linattn_lab.plots import Panel, Points
from linattn_lab.tables import figure, markdown_table
from speech.presets import PAPER
from speech.timing import Cost

UTTERANCES = 37_416  # of WSJ's training set


def benchmark_document(
    epoch: Sequence[Cost], curve: Sequence[Cost], about: Mapping[str, Any]
) -> str:
    """Seconds an epoch, the costs over the length, and what could not be measured.

    Args:
        epoch: of the batches that represent an epoch.
        curve: of the batches of equal lengths.
        about: "rounds", "preset", "environment" and "feature_speed".
    """
    where = about["environment"]
    failures = [
        f"{cost.attention}, {max(cost.lengths):,} frames: -, since {cost.failure}."
        for cost in (*epoch, *curve)
        if cost.failure
    ]
    parts = [
        "# What an update of a recognizer costs",
        _epoch_table(_by_attention(epoch)).rstrip(),
        f"An epoch is WSJ's {UTTERANCES:,} utterances; gain: over softmax; GB: the most by which "
        f"memory rose during an update. Medians of {about['rounds']} rounds in which the models "
        f"took turns; preset {about['preset']}; torch {where['torch']}, {where['device']}, "
        f"threads: {where['threads']}; backends: {', '.join(where['backends'])}; "
        f"commit {(where['commit'] or 'unknown')[:9]}.",
        _curve_table(_by_attention(curve)).rstrip(),
        "Seconds of an update and its memory, by the frames of an utterance.",
        *(["\n".join(failures)] if failures else []),
        "![Seconds and memory of an update over the length](costs.png)",
        f"Features: one core computes the frames of {about['feature_speed']:,.0f} s of audio in a "
        "second.",
    ]
    return "\n\n".join(parts) + "\n"


def cost_panels(curve: Sequence[Cost]) -> list[Panel]:
    """Seconds and memory of an update, over the frames of an utterance."""
    panels = []
    for title, value in (("seconds per update", _seconds), ("GB of memory", _gigabytes)):
        curves: dict[str, Points] = {
            name: [(of.lengths[0], y) for of in costs if (y := value(of)) is not None]
            for name, costs in _by_attention(curve).items()
        }
        panels.append(Panel("frames of an utterance", curves, title))
    return panels


def _seconds(cost: Cost) -> float | None:
    return median(cost.seconds) if cost.seconds else None


def _gigabytes(cost: Cost) -> float | None:
    return cost.bytes / 1e9 if cost.seconds else None


def _by_attention(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    names = dict.fromkeys(cost.attention for cost in costs)
    return {name: [cost for cost in costs if cost.attention == name] for name in names}


def _epoch_table(by_attention: Mapping[str, list[Cost]]) -> str:
    seconds = {name: _epoch_seconds(costs) for name, costs in by_attention.items()}
    longest = {name: _seconds(costs[-1]) for name, costs in by_attention.items()}
    rows = []
    for name, costs in by_attention.items():
        sizes = [size for cost in costs if (size := _gigabytes(cost)) is not None]
        paper = f"{PAPER[name][1]:,}" if name in PAPER else "-"
        gains = [_gain(of.get("softmax"), of[name]) for of in (seconds, longest)]
        rows.append([name, figure(seconds[name]), *gains, figure(max(sizes, default=None)), paper])
    header = ["model", "s per epoch", "gain", "gain, longest batch", "GB", "the paper's s (GPU)"]
    return markdown_table(header, rows)


def _epoch_seconds(costs: Sequence[Cost]) -> float | None:
    seconds = [median(cost.seconds) for cost in costs if cost.seconds]
    if len(seconds) < len(costs):
        return None
    return sum(seconds) * UTTERANCES / sum(len(cost.lengths) for cost in costs)


def _gain(one: float | None, other: float | None) -> str:
    return f"{figure(one / other)}x" if one is not None and other is not None else "-"


def _curve_table(by_attention: Mapping[str, list[Cost]]) -> str:
    header = ["frames", "utterances", *[f"{name}, s" for name in by_attention]]
    header += [f"{name}, GB" for name in by_attention]
    rows = []
    for costs in zip(*by_attention.values(), strict=True):
        lengths = costs[0].lengths
        cells = [*map(figure, map(_seconds, costs)), *map(figure, map(_gigabytes, costs))]
        rows.append([f"{lengths[0]:,}", f"{len(lengths)}", *cells])
    return markdown_table(header, rows)
