"""What is kept of the trained runs behind a record: what the report draws of them, no weights."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from linattn_models.files import remove_folder, replace_file
from linattn_models.training import RunFolder, publish
from replication.machine import key
from replication.measurement import Measurement
from replication.read import METRICS, PICTURES, RESULTS_FILE, SUMMARY

LINES = 200  # of each split of a run's metrics


def place(folder: Path, measurement: Measurement) -> Path:
    """Where the trained runs of a measurement are kept in the folder of the records."""
    return folder / "runs" / key(measurement.machine) / measurement.experiment


def keep(folder: Path, kept: Path) -> None:
    """Copies what is small of the trained runs in a folder, in place of what was kept before.

    That is config.json, summary.json and the pictures of each run, lines of its metrics.jsonl, and
    results.json of all of them. The places within the folder stay the same, so that the reader of
    the experiment finds the same figures in the copy.
    """
    runs = [RunFolder(file.parent) for file in sorted(folder.rglob(SUMMARY))]
    if not runs:
        shutil.rmtree(kept, ignore_errors=True)
        return
    new = kept.with_name(f"{kept.name}.new")  # complete before it takes the place of the old copy
    shutil.rmtree(new, ignore_errors=True)
    publish(folder, new, [RESULTS_FILE] if (folder / RESULTS_FILE).exists() else [], runs)
    for run in runs:
        copy = new / run.path.relative_to(folder)
        lines = (copy / METRICS).read_text(encoding="utf-8").splitlines(keepends=True)
        replace_file(copy / METRICS, "".join(thinned(lines)).encode())
        for picture in (run.path / f"{name}.png" for name in PICTURES):
            if picture.exists():
                shutil.copyfile(picture, copy / picture.name)
    if kept.exists():
        remove_folder(kept)
    new.replace(kept)


def thinned(lines: Sequence[str]) -> list[str]:
    """Of each split at most `LINES` lines of metrics, evenly spaced, the first and last included.

    The lines are unchanged; the others are dropped.
    """
    splits = defaultdict[str, list[int]](list)
    for number, line in enumerate(lines):
        splits[json.loads(line)["split"]].append(number)
    chosen = {
        numbers[round(k * (len(numbers) - 1) / (LINES - 1))] if len(numbers) > LINES else numbers[k]
        for numbers in splits.values()
        for k in range(min(LINES, len(numbers)))
    }
    return [lines[number] for number in sorted(chosen)]
