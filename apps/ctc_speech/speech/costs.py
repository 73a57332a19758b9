"""What updates cost, as a document with curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from linattn_lab.plots import Panel, Points
from linattn_lab.tables import figure, markdown_table
from speech.tables import PAPER, commit

UTTERANCES = 37_416  # of WSJ's training set
Line = Mapping[str, Any]  # of a model on a batch


def benchmark_document(record: Mapping[str, Any]) -> str:
    """Seconds an epoch, the costs over the length, and what could not be measured."""
    where = record["environment"]
    parts = [
        "# What an update of a recognizer costs",
        _epoch_table(record["epoch"]).rstrip(),
        f"An epoch is WSJ's {UTTERANCES:,} utterances; gain: over softmax; GB: the most by which "
        f"memory rose during an update. Medians of {record['rounds']} rounds in which the models "
        f"took turns; preset {record['preset']}; torch {where['torch']}, {where['device']}, "
        f"threads: {where['threads']}; backends: {', '.join(where['backends'])}; "
        f"commit {commit(where)}.",
        _curve_table(record["curve"]).rstrip(),
        "Seconds of an update and its memory, by the frames of an utterance.",
        *_failures([*record["epoch"], *record["curve"]]),
        "![Seconds and memory of an update over the length](costs.png)",
        f"Features: one core computes the frames of {record['feature_speed']:,.0f} s of audio in a "
        "second.",
    ]
    return "\n\n".join(parts) + "\n"


def cost_panels(record: Mapping[str, Any]) -> list[Panel]:
    """Seconds and memory of an update, over the frames of an utterance."""
    xlabel = "frames of an utterance"
    return [
        Panel(xlabel, _curves(record["curve"], _seconds), "seconds per update"),
        Panel(xlabel, _curves(record["curve"], _gigabytes), "GB of memory"),
    ]


def _curves(lines: Sequence[Line], value: Any) -> dict[str, Points]:
    curves: dict[str, Points] = {line["attention"]: [] for line in lines}
    for line in lines:
        if line["seconds"]:
            curves[line["attention"]].append((line["lengths"][0], value(line)))
    return curves


def _seconds(line: Line) -> float | None:
    return median(line["seconds"]) if line["seconds"] else None


def _gigabytes(line: Line) -> float:
    return float(line["bytes"]) / 1e9


def _epoch_table(lines: Sequence[Line]) -> str:
    seconds = {name: _epoch_seconds(of) for name, of in _by_attention(lines).items()}
    rows = []
    for name, of in _by_attention(lines).items():
        memory = max(map(_gigabytes, of)) if seconds[name] is not None else None
        gain = _gain(seconds.get("softmax"), seconds[name])
        longest = _gain(_longest(lines, "softmax"), _longest(lines, name))
        paper = f"{PAPER[name][1]:,}" if name in PAPER else "-"
        rows.append([name, figure(seconds[name]), gain, longest, figure(memory), paper])
    header = ["model", "s per epoch", "gain", "gain, longest batch", "GB", "the paper's s (GPU)"]
    return markdown_table(header, rows)


def _epoch_seconds(lines: Sequence[Line]) -> float | None:
    if not all(line["seconds"] for line in lines):
        return None
    utterances = sum(len(line["lengths"]) for line in lines)
    return sum(median(line["seconds"]) for line in lines) * UTTERANCES / utterances


def _longest(lines: Sequence[Line], name: str) -> float | None:
    of = _by_attention(lines).get(name)
    return _seconds(of[-1]) if of else None


def _gain(one: float | None, other: float | None) -> str:
    return f"{figure(one / other)}x" if one is not None and other is not None else "-"


def _curve_table(lines: Sequence[Line]) -> str:
    by_attention = _by_attention(lines)
    header = ["frames", "utterances", *[f"{name}, s" for name in by_attention]]
    header += [f"{name}, GB" for name in by_attention]
    rows = []
    for of in zip(*by_attention.values(), strict=True):
        lengths = of[0]["lengths"]
        sizes = [_gigabytes(line) if line["seconds"] else None for line in of]
        cells = [figure(_seconds(line)) for line in of] + [figure(size) for size in sizes]
        rows.append([f"{lengths[0]:,}", f"{len(lengths)}", *cells])
    return markdown_table(header, rows)


def _by_attention(lines: Sequence[Line]) -> dict[str, list[Line]]:
    by_attention: dict[str, list[Line]] = {line["attention"]: [] for line in lines}
    for line in lines:
        by_attention[line["attention"]].append(line)
    return by_attention


def _failures(lines: Sequence[Line]) -> list[str]:
    named = [
        f"{line['attention']}, {max(line['lengths']):,} frames: -, since {line['failure']}."
        for line in lines
        if line["failure"]
    ]
    return ["\n".join(named)] if named else []
