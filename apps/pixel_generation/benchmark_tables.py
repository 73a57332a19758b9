"""What benchmark.py prints: our figures, and the paper's beneath them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markdown_tables import figure, markdown_table
from paper_figures import PAPER, PaperRow
from pixel_speed import METHODS, Speed, how_it_ran


def report(record: dict[str, Any], speeds: Sequence[Speed], batch: int) -> str:
    """Our table, and the paper's beneath it."""
    config, where = record["model"]["transformer"], record["environment"]
    lines = [
        f"Images of {record['shape']} by a model of {config['num_layers']} layers, "
        f"{config['num_heads']} heads of {config['head_dim']}, {record['model']['max_length']:,} "
        "positions.",
        how_it_ran(where, speeds),
        "~: timed at some positions, the others interpolated.",
        "",
        our_table(speeds, batch, record["bits_per_dim"]),
    ]
    if record["shape"] in PAPER:
        lines += [
            "The paper's figures, as we read it: images/s of a GPU at the batch that filled it.",
            "",
            paper_table(record["shape"]),
        ]
    return "\n".join(lines)


def our_table(speeds: Sequence[Speed], batch: int, bits: dict[str, float]) -> str:
    """A row for each method, with its gain over rerunning where that was timed."""
    by_case = {(speed.method, speed.batch): speed for speed in speeds}
    methods = [method for method in METHODS if (method, 1) in by_case]
    rows = []
    for method in methods:
        one, many = by_case[method, 1], by_case[method, batch]
        rows.append(
            [
                method,
                figure(bits.get(METHODS[method][0])),
                figure(many.images_per_second, many.estimated),
                gain(many, by_case.get(("softmax", batch))),
                figure(one.seconds_per_image, one.estimated),
                gain(one, by_case.get(("softmax", 1))),
                f"{one.state_bytes_per_image:,}",
            ]
        )
    header = ["attention", "bits/dim", f"images/s, batch {batch}", "gain"]
    header += ["s for one image", "gain", "bytes of state an image"]
    return markdown_table(header, rows)


def gain(speed: Speed, rerun: Speed | None) -> str:
    """How many times as fast as rerunning the prefix."""
    if rerun is None:
        return "-"
    return figure(speed.images_per_second / rerun.images_per_second) + "x"


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
