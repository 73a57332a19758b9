"""What updates cost, as a document with curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from linattn_lab.compare import name_environments
from linattn_lab.plots import Panel, Points
from linattn_lab.tables import figure, markdown_table, table_of
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
        f"took turns; preset {about['preset']}; {name_environments([where])}; "
        f"backends: {', '.join(where['backends'])}.",
        _curve_table(curve).rstrip(),
        "Seconds of an update and its memory, by the frames of an utterance.",
        "\n".join(failures),
        "![Seconds and memory of an update over the length](costs.png)",
        f"Features: one core computes the frames of {about['feature_speed']:,.0f} s of audio in a "
        "second.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def cost_panels(curve: Sequence[Cost]) -> list[Panel]:
    """Seconds and memory of an update, over the frames of an utterance."""

    def panel(title: str, value: Callable[[Cost], float | None]) -> Panel:
        curves: dict[str, Points] = {
            name: [(cost.lengths[0], y) for cost in costs if (y := value(cost)) is not None]
            for name, costs in _by_attention(curve).items()
        }
        return Panel("frames of an utterance", curves, title)

    return [
        panel("seconds per update", lambda cost: cost.median),
        panel("GB of memory", lambda cost: cost.gigabytes),
    ]


def _by_attention(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    names = dict.fromkeys(cost.attention for cost in costs)
    return {name: [cost for cost in costs if cost.attention == name] for name in names}


def _epoch_table(models: Mapping[str, list[Cost]]) -> str:
    def gain(costs: list[Cost], seconds: Callable[[list[Cost]], float | None]) -> str:
        one, other = seconds(models.get("softmax", [])), seconds(costs)
        return "-" if one is None or other is None else f"{figure(one / other)}x"

    def paper(costs: list[Cost]) -> str:
        name = costs[0].attention
        return f"{PAPER[name][1]:,}" if name in PAPER else "-"

    columns: dict[str, Callable[[list[Cost]], str]] = {
        "s per epoch": lambda costs: figure(_epoch_seconds(costs)),
        "gain": lambda costs: gain(costs, _epoch_seconds),
        "gain, longest batch": lambda costs: gain(costs, lambda of: of[-1].median if of else None),
        "GB": lambda costs: figure(max((x.gigabytes for x in costs if x.gigabytes), default=None)),
        "the paper's s (GPU)": paper,
    }
    return table_of(models, columns, first="model")


def _epoch_seconds(costs: Sequence[Cost]) -> float | None:
    seconds = [cost.median for cost in costs if cost.median is not None]
    if not seconds or len(seconds) < len(costs):
        return None
    return sum(seconds) * UTTERANCES / sum(len(cost.lengths) for cost in costs)


def _curve_table(curve: Sequence[Cost]) -> str:
    models = _by_attention(curve)
    header = ["frames", "utterances", *[f"{name}, s" for name in models]]
    header += [f"{name}, GB" for name in models]
    rows = []
    for costs in zip(*models.values(), strict=True):
        lengths = costs[0].lengths
        sizes = [f"{lengths[0]:,}", f"{len(lengths)}"]
        seconds = [figure(cost.median) for cost in costs]
        rows.append([*sizes, *seconds, *[figure(cost.gigabytes) for cost in costs]])
    return markdown_table(header, rows)
