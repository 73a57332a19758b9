"""Set trained runs side by side: their curves in one picture, their numbers in one table.

    python apps/pixel_generation/compare.py --runs RUN RUN --out docs/results/mnist

Into --out go curves.png (bits per dimension of the validation images, over updates and over time),
table.md, and for each run a folder of its own with config.json, metrics.jsonl and summary.json:
everything that says what was done and what came of it, and no weights.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import tyro
from markdown_tables import markdown_table
from matplotlib.figure import Figure
from pixel_runs import APP

from linattn_models.atomic import replace_file
from linattn_models.training import RunFolder, run_script


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
    summaries = {name: ended(run) for name, run in runs.items()}
    picture, text = curves(runs), table(summaries)
    flags.out.mkdir(parents=True, exist_ok=True)
    replace_file(flags.out / "curves.png", picture)
    replace_file(flags.out / "table.md", text.encode())
    for name, run in runs.items():
        (flags.out / name).mkdir(exist_ok=True)
        for file in (run.config_file, run.metrics_file, run.summary_file):
            replace_file(flags.out / name / file.name, file.read_bytes())
    print(f"{text}\nPicture, table and records are in {flags.out}.")


def named(folder: Path) -> str:
    """What a run is called: the name of its folder."""
    return folder.resolve().name


def ended(run: RunFolder) -> dict[str, Any]:
    """The summary of a run of this application that has ended."""
    summary = run.summary()
    if summary.get("app") != APP:
        raise ValueError(
            f"{run.path}: expected a run of {APP}, found one of {summary.get('app')!r}"
        )
    return summary


def curves(runs: dict[str, RunFolder]) -> bytes:
    """A PNG: bits per dimension of the validation images over updates, and over seconds."""
    drawing = Figure(figsize=(9, 3.4), layout="constrained")
    panels = drawing.subplots(1, 2, sharey=True)
    for panel, over, label in zip(panels, ("step", "seconds"), ("updates", "seconds"), strict=True):
        for name, run in runs.items():
            looks = [line for line in run.metrics() if line["split"] == "eval"]
            panel.plot(
                [look[over] for look in looks],
                [look["bits_per_dim"] for look in looks],
                label=name,
                marker="o",
                markersize=3,
            )
        panel.set(xlabel=f"{label} of training")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="bits/dim, validation images")
    panels[0].legend()
    png = io.BytesIO()
    drawing.savefig(png, format="png", dpi=120)
    return png.getvalue()


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
