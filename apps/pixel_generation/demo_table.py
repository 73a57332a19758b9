"""The table that the demo ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pixel_methods import LINEAR, SOFTMAX, STATEFUL_SOFTMAX
from pixel_speed import Speed, how_it_ran

from linattn_models.training import figure, markdown_table

METHODS = (LINEAR, STATEFUL_SOFTMAX, SOFTMAX)


def demo_report(results: dict[str, Any], speeds: Sequence[Speed], batch: int) -> str:
    """What was learned and what generating costs, a row for each way to generate."""
    by_case = {(speed.method, speed.batch): speed for speed in speeds}
    rows = []
    for method in METHODS:
        one, many = by_case[method.name, 1], by_case[method.name, batch]
        rows.append(
            [
                method.name,
                f"{results['runs'][method.attention]['metrics']['bits_per_dim']:.2f}",
                figure(one.images_per_second),
                figure(many.images_per_second),
                f"{one.state_bytes_per_image:,}",
            ]
        )
    header = ["attention", "bits/dim", "images/s, batch 1", f"images/s, batch {batch:,}"]
    header.append("bytes of state an image")
    return "\n".join([markdown_table(header, rows), *_notes(results, speeds)]) + "\n"


def _notes(results: dict[str, Any], speeds: Sequence[Speed]) -> list[str]:
    run, where = results["runs"]["linear"], results["environment"]
    alone = run["metrics"]["independent_pixels_bits_per_dim"]
    notes = [
        f"Independent pixels, each position with its own frequencies, cost {alone:.2f} bits/dim.",
        f"Held-out images: {run['metrics']['test_images']}; updates: {run['steps']:,} each; "
        f"training: {_seconds(results)}; parameters: {run['parameters']:,}.",
        how_it_ran(where, speeds),
    ]
    if any(speed.estimated for speed in speeds):
        notes.append("Speeds are from pixels spread over the image, the others interpolated.")
    return notes


def _seconds(results: dict[str, Any]) -> str:
    runs = results["runs"].items()
    return ", ".join(f"{summary['train_seconds']:.0f} s {name}" for name, summary in runs)
