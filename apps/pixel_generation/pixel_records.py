"""What a run leaves for others to read: its numbers and its settings, and no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pixel_runs import APP

from linattn_models.files import replace_file
from linattn_models.training import RunFolder


def summary_of(run: RunFolder) -> dict[str, Any]:
    """The summary of a run of this application that has ended."""
    summary = run.summary()
    if summary.get("app") != APP:
        raise ValueError(
            f"{run.path}: expected a run of {APP}, found one of {summary.get('app')!r}"
        )
    return summary


def copy_records(run: RunFolder, folder: Path) -> None:
    """Copies config.json, metrics.jsonl and summary.json of `run` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (run.config_file, run.metrics_file, run.summary_file):
        replace_file(folder / file.name, file.read_bytes())
