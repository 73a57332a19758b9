"""The tables that the scripts print, with the paper's numbers below or beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from linattn_lab.batches import WORTHWHILE
from linattn_lab.tables import describe_environment, figure, markdown_table
from pixels.methods import SOFTMAX, Outcome, Speed
from pixels.paper import PAPER


def benchmark_report(record: dict[str, Any], outcomes: Sequence[Outcome], *, searched: bool) -> str:
    """Our table, its notes, and the paper's beneath it."""
    config, where = record["model"]["transformer"], record["environment"]
    lines = [
        f"Images of {record['shape']} by a model of {config['num_layers']} layers, "
        f"{config['num_heads']} heads of {config['head_dim']}, {record['model']['max_length']:,} "
        "positions.",
        describe_speeds(where, [speed for outcome in outcomes for speed in outcome.speeds]),
        "~: timed at some positions, the others interpolated. gain: over softmax, which reruns.",
        "",
        benchmark_table(outcomes, record["bits_per_dim"]),
        *_benchmark_notes(outcomes, searched),
    ]
    if record["shape"] in PAPER:
        lines += [
            "The paper's numbers, as we read it: images/s of a GPU at the batch that filled it.",
            "",
            paper_table(record["shape"]),
        ]
    return "\n".join(lines)


def benchmark_table(outcomes: Sequence[Outcome], bits: dict[str, float]) -> str:
    """A row for each method, with its gain over rerunning softmax where that was timed."""
    rerun = next((outcome for outcome in outcomes if outcome.method == SOFTMAX), Outcome(SOFTMAX))
    rows = [
        [
            outcome.method.name,
            figure(bits.get(outcome.method.attention)),
            *_side_by_side(outcome.many, rerun.many),
            *_alone(outcome.one, rerun.one),
        ]
        for outcome in outcomes
    ]
    header = ["attention", "bits/dim", "images/s", "batch", "gain"]
    header += ["s for one image", "gain", "bytes of state per image"]
    return markdown_table(header, rows)


def _side_by_side(speed: Speed | None, rerun: Speed | None) -> list[str]:
    """Images/s, at which batch, and the gain."""
    if speed is None:
        return ["-", "-", "-"]
    rate = figure(speed.images_per_second, speed.estimated)
    return [rate, f"{speed.batch:,}", _gain(speed, rerun)]


def _alone(speed: Speed | None, rerun: Speed | None) -> list[str]:
    """Seconds, the gain, and bytes of state."""
    if speed is None:
        return ["-", "-", "-"]
    seconds = figure(speed.seconds_per_image, speed.estimated)
    return [seconds, _gain(speed, rerun), f"{speed.state_bytes_per_image:,}"]


def _gain(speed: Speed, rerun: Speed | None) -> str:
    """How many times as fast as rerunning the prefix."""
    if rerun is None:
        return "-"
    return figure(speed.images_per_second / rerun.images_per_second) + "x"


def _benchmark_notes(outcomes: Sequence[Outcome], searched: bool) -> list[str]:
    """How batches were chosen, where that ended early, and what could not be timed."""
    lines = []
    if searched:
        lines.append(
            "batch: the best of 1, 2, 4 and so on, until two in a row gained less than "
            f"{WORTHWHILE - 1:.0%} each."
        )
    for reason in dict.fromkeys(outcome.bounded_by for outcome in outcomes if outcome.bounded_by):
        bounded = ", ".join(x.method.name for x in outcomes if x.bounded_by == reason)
        lines.append(f"{bounded}: no larger batch was tried, since {reason}.")
    lines += [f"{x.method.name}: -, since {x.failure}" for x in outcomes if x.failure]
    return [*lines, ""] if lines else []


def paper_table(shape: str) -> str:
    """What the paper gives for these images, its speeds to the digits that it has."""
    header = ["paper", "bits/dim", "images/s (GPU)", "s for one image (CPU)", "(GPU)"]
    rows = []
    for row in PAPER[shape]:
        speeds = (row.images_per_second, row.seconds_cpu, row.seconds_gpu)
        cells = ["-" if value is None else f"{value:,g}" for value in speeds]
        rows.append([row.method, figure(row.bits_per_dim), *cells])
    return markdown_table(header, rows)


def demo_report(results: dict[str, Any], outcomes: Sequence[Outcome], batch: int) -> str:
    """What was learned and what generating costs, a row for each way to generate."""
    rows = []
    for outcome in outcomes:
        bits = results["runs"][outcome.method.attention]["metrics"]["bits_per_dim"]
        one, many = outcome.one, outcome.many
        rates = ["-" if x is None else figure(x.images_per_second) for x in (one, many)]
        state = "-" if one is None else f"{one.state_bytes_per_image:,}"
        rows.append([outcome.method.name, f"{bits:.2f}", *rates, state])
    header = ["attention", "bits/dim", "images/s, batch 1", f"images/s, batch {batch:,}"]
    header.append("bytes of state per image")
    notes = [*_benchmark_notes(outcomes, searched=False), *_demo_notes(results, outcomes)]
    return "\n".join([markdown_table(header, rows), *notes]) + "\n"


def demo_gains(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """How many times as fast as rerunning softmax each other method is, at each batch."""
    rerun = next((outcome for outcome in outcomes if outcome.method == SOFTMAX), Outcome(SOFTMAX))
    speeds = {speed.batch: speed.images_per_second for speed in rerun.speeds}
    return {
        f"{outcome.method.name}, batch {speed.batch:,}": speed.images_per_second
        / speeds[speed.batch]
        for outcome in outcomes
        if outcome.method != SOFTMAX
        for speed in outcome.speeds
        if speed.batch in speeds
    }


def _demo_notes(results: dict[str, Any], outcomes: Sequence[Outcome]) -> list[str]:
    speeds = [speed for outcome in outcomes for speed in outcome.speeds]
    run, runs = results["runs"]["linear"], results["runs"].items()
    alone = run["metrics"]["independent_pixels_bits_per_dim"]
    seconds = ", ".join(f"{summary['train_seconds']:.0f} s {name}" for name, summary in runs)
    notes = [
        f"Independent pixels, each position with its own frequencies, cost {alone:.2f} bits/dim.",
        f"Held-out images: {run['metrics']['test_images']}; updates: {run['steps']:,} each; "
        f"training: {seconds}; parameters: {run['parameters']:,}.",
        describe_speeds(results["environment"], speeds),
        f"Made at commit {(results['environment']['commit'] or 'unknown')[:9]}.",
    ]
    if any(speed.estimated for speed in speeds):
        notes.append("Speeds are from pixels spread over the image, the others interpolated.")
    return notes


def describe_speeds(where: Mapping[str, Any], speeds: Sequence[Speed]) -> str:
    """A note below a table: the environment, and what of linear attention was native."""
    first = describe_environment(where)
    native = where["steps_by"]
    if native == "reference":
        return f"{first}; linear attention in plain torch."
    compiled = dict.fromkeys(speed.method for speed in speeds if speed.compiled)
    drawn = f", which also compiled the decoder of: {', '.join(compiled)}" if compiled else ""
    return f"{first}; linear attention by the backend {native}{drawn}."
