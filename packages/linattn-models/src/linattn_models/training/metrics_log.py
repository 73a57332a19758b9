"""Where measurements go while a run runs: a progress bar, `metrics.jsonl` and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from linattn_models.training.run_folder import RunFolder


class MetricsLog:
    """Appends measurements to a run folder; closed at the end of its `with` block.

    Args:
        folder: the run, its `metrics.jsonl` already cut back to the step that the run goes on from.
        step: updates made so far.
        steps: updates in all.
    """

    def __init__(self, folder: RunFolder, step: int, steps: int) -> None:
        self._file = folder.metrics_file.open("ab")
        self._lines = folder.metrics_file.read_bytes().count(b"\n")
        # purge_step hides what a killed run showed of the steps that are now made again.
        self._writer = SummaryWriter(str(folder.tensorboard_folder), purge_step=step + 1)
        self._bar = tqdm(total=steps, initial=step, unit="step", file=sys.stderr)

    @property
    def lines(self) -> int:
        """Lines in `metrics.jsonl`."""
        return self._lines

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
        self._file.close()
        self._writer.close()

    def advance(self) -> None:
        """Moves the progress bar on by one step."""
        self._bar.update()

    def log(self, step: int, split: str, values: Mapping[str, float], seconds: float) -> None:
        """Writes one line of measurements at once; inf and nan, unknown to JSON, become null."""
        named = {name: finite_or_none(value) for name, value in values.items()}
        line = {"step": step, "split": split, **named, "seconds": round(seconds, 3)}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self._lines += 1
        for name, value in values.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        if split == "train":
            self._bar.set_postfix(
                loss=f"{values['loss']:.4f}", lr=f"{values['learning_rate']:.1e}", refresh=False
            )

    def sync(self) -> None:
        """Returns once the disk has every line so far."""
        os.fsync(self._file.fileno())


def finite_or_none(value: float) -> float | None:
    """`value`, or None where JSON could not hold it."""
    return value if math.isfinite(value) else None


def checked_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """What an evaluation returned, as plain floats.

    Raises:
        ValueError: if it took a name that a line of `metrics.jsonl` already has.
    """
    taken = sorted(values.keys() & {"step", "split", "seconds"})
    if taken:
        raise ValueError(
            f"an evaluation may not name a metric {taken[0]!r}: each line has it already"
        )
    return {name: float(value) for name, value in values.items()}
