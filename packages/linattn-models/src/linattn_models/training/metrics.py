"""Measurements of runs, as they are logged."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from linattn_core.errors import expected

# Names in a line of metrics.jsonl that are not measurements.
NOT_MEASURED = frozenset({"step", "split", "seconds"})


class MetricsLog:
    """Appends measurements to a run folder; closed at the end of its `with` block.

    Args:
        path: `metrics.jsonl`, already cut back to the step from which the run continues.
        step: updates made so far.
        steps: updates in all.
    """

    def __init__(self, path: Path, step: int, steps: int) -> None:
        self._path = path
        self._file = self._path.open("ab")
        content = self._path.read_bytes()
        self._bytes = len(content)
        self.lines = content.count(b"\n")
        # purge_step hides the points of a killed run at steps that are now repeated.
        self._writer = SummaryWriter(str(path.parent / "tensorboard"), purge_step=step + 1)
        self._bar = tqdm(total=steps, initial=step, unit="step", file=sys.stderr)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        self._file.close()
        self._writer.close()

    def advance(self) -> None:
        """Moves the progress bar on by one step."""
        self._bar.update()

    def log(self, step: int, split: str, values: Mapping[str, float], seconds: float) -> None:
        """Writes one line of measurements at once; inf and nan, which JSON lacks, become null."""
        named = {name: finite_or_none(value) for name, value in values.items()}
        line = {"step": step, "split": split, **named, "seconds": round(seconds, 3)}
        self._bytes += self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.lines += 1
        for name, value in values.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        if split == "train":
            self._bar.set_postfix(
                loss=f"{values['loss']:.4f}", lr=f"{values['learning_rate']:.1e}", refresh=False
            )

    def sync(self) -> None:
        """Flushes every line so far to disk.

        Raises:
            ValueError: if another process has replaced the file or written into it; the run's lock
                prevents this only on file systems with locks.
        """
        os.fsync(self._file.fileno())
        own = os.fstat(self._file.fileno())
        same = self._path.exists() and os.path.samestat(own, self._path.stat())
        if not same or own.st_size != self._bytes:
            wanted = f"the {self.lines} lines that this process wrote"
            advice = "another process writes into the run, so stop one and resume"
            raise ValueError(expected(str(self._path), wanted, "a changed file", advice))


def finite_or_none(value: float) -> float | None:
    """`value`, or None where JSON could not hold it."""
    return value if math.isfinite(value) else None


def checked_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """The result of an evaluation as plain floats.

    Raises:
        ValueError: if a metric has a name that each line of `metrics.jsonl` uses already.
    """
    for name in sorted(values.keys() & NOT_MEASURED):
        raise ValueError(expected("metrics", "names that no line has already", repr(name)))
    return {name: float(value) for name, value in values.items()}
