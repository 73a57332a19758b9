"""What benchmark.py prints: our figures, and the paper's beneath them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paper_figures import PAPER, PaperRow
from pixel_batches import WORTHWHILE
from pixel_methods import SOFTMAX
from pixel_outcomes import Outcome
from pixel_speed import Speed, how_it_ran

from linattn_models.training import figure, markdown_table


def report(record: dict[str, Any], outcomes: Sequence[Outcome], *, searched: bool) -> str:
    """Our table, what is to be said of it, and the paper's beneath it."""
    config, where = record["model"]["transformer"], record["environment"]
    lines = [
        f"Images of {record['shape']} by a model of {config['num_layers']} layers, "
        f"{config['num_heads']} heads of {config['head_dim']}, {record['model']['max_length']:,} "
        "positions.",
        how_it_ran(where, [speed for outcome in outcomes for speed in outcome.speeds]),
        "~: timed at some positions, the others interpolated. gain: over softmax, which reruns.",
        "",
        our_table(outcomes, record["bits_per_dim"]),
        *notes(outcomes, searched),
    ]
    if record["shape"] in PAPER:
        lines += [
            "The paper's figures, as we read it: images/s of a GPU at the batch that filled it.",
            "",
            paper_table(record["shape"]),
        ]
    return "\n".join(lines)


def our_table(outcomes: Sequence[Outcome], bits: dict[str, float]) -> str:
    """A row for each method, with its gain over rerunning softmax where that was timed."""
    rerun = next((outcome for outcome in outcomes if outcome.method == SOFTMAX), Outcome(SOFTMAX))
    rows = [
        [
            outcome.method.name,
            figure(bits.get(outcome.method.attention)),
            *many_side_by_side(outcome.many, rerun.many),
            *one_alone(outcome.one, rerun.one),
        ]
        for outcome in outcomes
    ]
    header = ["attention", "bits/dim", "images/s", "batch", "gain"]
    header += ["s for one image", "gain", "bytes of state an image"]
    return markdown_table(header, rows)


def many_side_by_side(speed: Speed | None, rerun: Speed | None) -> list[str]:
    """Images/s, at which batch, and the gain."""
    if speed is None:
        return ["-", "-", "-"]
    made = figure(speed.images_per_second, speed.estimated)
    return [made, f"{speed.batch:,}", gain(speed, rerun)]


def one_alone(speed: Speed | None, rerun: Speed | None) -> list[str]:
    """Seconds, the gain, and bytes of state."""
    if speed is None:
        return ["-", "-", "-"]
    seconds = figure(speed.seconds_per_image, speed.estimated)
    return [seconds, gain(speed, rerun), f"{speed.state_bytes_per_image:,}"]


def gain(speed: Speed, rerun: Speed | None) -> str:
    """How many times as fast as rerunning the prefix."""
    if rerun is None:
        return "-"
    return figure(speed.images_per_second / rerun.images_per_second) + "x"


def notes(outcomes: Sequence[Outcome], searched: bool) -> list[str]:
    """How batches were chosen, where that ended early, and what could not be timed."""
    lines = []
    if searched:
        lines.append(
            "batch: the best of 1, 2, 4 and so on, until two in a row gained less than "
            f"{WORTHWHILE - 1:.0%} each."
        )
    lines += [
        f"{outcome.method.name}: no larger batch was tried, since {outcome.bounded_by}."
        for outcome in outcomes
        if outcome.bounded_by
    ]
    lines += [f"{x.method.name}: -, since {x.failure}" for x in outcomes if x.failure]
    return [*lines, ""] if lines else []


def given(row: PaperRow) -> tuple[float | None, ...]:
    """A row's speeds, which are shown to the digits that the paper has."""
    return row.images_per_second, row.seconds_cpu, row.seconds_gpu


def paper_table(shape: str) -> str:
    """What the paper gives for these images."""
    header = ["paper", "bits/dim", "images/s (GPU)", "s for one image (CPU)", "(GPU)"]
    rows = [
        [
            row.method,
            figure(row.bits_per_dim),
            *("-" if value is None else f"{value:,g}" for value in given(row)),
        ]
        for row in PAPER[shape]
    ]
    return markdown_table(header, rows)
