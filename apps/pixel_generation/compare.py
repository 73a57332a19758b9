"""Set trained runs side by side: their curves in one picture, their numbers in one table.

    python apps/pixel_generation/compare.py --runs RUN RUN --out docs/results/mnist

Into --out go curves.png (bits per dimension of the validation images, over updates and over time),
table.md, and for each run a folder of its own with config.json, metrics.jsonl and summary.json:
everything that says what was done and what came of it, and no weights.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tyro
from pixel_curves import Panel, draw, validation_curve
from pixel_records import copy_records, summary_of

from linattn_models.files import replace_file
from linattn_models.training import RunFolder, markdown_table, run_script


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which runs, and where the comparison goes."""

    runs: tuple[Path, ...]
    """Folders of runs that train.py made and that have ended."""
    out: Path = Path("runs/pixel_generation/comparison")
    """Folder for the picture, the table and the runs' records."""


def main(flags: Flags) -> None:
    """Draws, prints the table, and copies what the runs recorded."""
    runs = {named(folder): RunFolder(folder) for folder in flags.runs}
    if not runs:
        raise ValueError("expected --runs to name one run or more, got none")
    if len(runs) < len(flags.runs):
        raise ValueError("expected --runs with folders of different names, got one name twice")
    summaries = {name: summary_of(run) for name, run in runs.items()}
    picture, text = curves(runs), table(summaries)
    flags.out.mkdir(parents=True, exist_ok=True)
    replace_file(flags.out / "curves.png", picture)
    replace_file(flags.out / "table.md", text.encode())
    for name, run in runs.items():
        copy_records(run, flags.out / name)
    print(f"{text}\nPicture, table and records are in {flags.out}.")


def named(folder: Path) -> str:
    """What a run is called: the name of its folder."""
    return folder.resolve().name


def curves(runs: dict[str, RunFolder]) -> bytes:
    """A PNG: bits per dimension of the validation images over updates, and over seconds."""
    panels = [
        Panel(label, {name: validation_curve(run, over) for name, run in runs.items()})
        for over, label in (("step", "updates of training"), ("seconds", "seconds of training"))
    ]
    return draw(*panels)


def table(summaries: dict[str, dict[str, Any]]) -> str:
    """A row for each run, and one for independent pixels."""
    header = ["run", "attention", "updates", "parameters", "s of training", "bits/dim, test"]
    header.append("validation")
    rows = [
        [
            name,
            summary["attention"],
            f"{summary['steps']:,}",
            f"{summary['parameters']:,}",
            f"{summary['train_seconds']:,.0f}",
            f"{summary['metrics']['bits_per_dim']:.3f}",
            f"{summary['metrics']['validation_bits_per_dim']:.3f}",
        ]
        for name, summary in summaries.items()
    ]
    metrics = next(iter(summaries.values()))["metrics"]
    alone = f"{metrics['independent_pixels_bits_per_dim']:.3f}"
    rows.append(["independent pixels", "-", "-", "-", "-", alone, "-"])
    return markdown_table(header, rows)


if __name__ == "__main__":
    run_script(lambda: main(tyro.cli(Flags, description=__doc__)))
