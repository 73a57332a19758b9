"""Measurements of a run: a line of JSON each, TensorBoard, and progress on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from linattn_core.errors import expected

# Names in a line of metrics.jsonl that are not measurements.
NOT_MEASURED = frozenset({"step", "split", "seconds"})
_NEVER = 10**9  # seconds


class MetricsLog:
    """Appends measurements to a run folder; closed at the end of its `with` block.

    Args:
        path: `metrics.jsonl`, already cut back to the step from which the run continues.
        step: updates made so far.
        steps: updates in all.
    """

    def __init__(self, path: Path, step: int, steps: int) -> None:
        self.lines = path.read_bytes().count(b"\n")
        self._path = path
        self._file = path.open("ab")
        # purge_step hides the points of a killed run at steps that are now repeated. Points are
        # flushed by `log`: the writer's own thread would print a traceback where it cannot.
        self._writer = SummaryWriter(
            str(path.parent / "tensorboard"), purge_step=step + 1, flush_secs=_NEVER
        )
        self._steps = steps
        # Elsewhere than on a terminal a bar would fill a file: there it is a line for each loss.
        self._bar = tqdm(
            total=steps, initial=step, unit="step", file=sys.stderr, disable=not sys.stderr.isatty()
        )

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        self._file.close()
        with suppress(FileNotFoundError):  # of a folder that was moved, which is an error already
            self._writer.close()

    def advance(self) -> None:
        """Moves the progress bar on by one step."""
        self._bar.update()

    def log(self, step: int, split: str, values: Mapping[str, float], seconds: float) -> None:
        """Writes one line of measurements at once; inf and nan, which JSON lacks, become null."""
        self._require_in_place()
        for name in sorted(values.keys() & NOT_MEASURED):
            raise ValueError(expected("metrics", "names that no line has already", repr(name)))
        line = {
            "step": step,
            "split": split,
            **finite_or_none(values),
            "seconds": round(seconds, 3),
        }
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.lines += 1
        for name, value in values.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        self._writer.flush()
        if split == "train":
            loss, rate = f"{values['loss']:.4f}", f"{values['learning_rate']:.1e}"
            self._bar.set_postfix(loss=loss, lr=rate, refresh=False)
            if self._bar.disable:
                place = f"step {step:,} of {self._steps:,}"
                print(f"{place}: loss {loss}, learning rate {rate}", file=sys.stderr)

    def sync(self) -> None:
        """Flushes every line so far to disk."""
        self._require_in_place()
        os.fsync(self._file.fileno())

    def _require_in_place(self) -> None:
        try:
            in_place = os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            in_place = False
        if not in_place:
            wanted, advice = "the run that began there", "move it back and resume it"
            got = "none: it was moved or removed while it trained"
            raise FileNotFoundError(expected(str(self._path.parent), wanted, got, advice))


def finite_or_none(values: Mapping[str, float]) -> dict[str, float | None]:
    """The values by name, with None where JSON could not hold one."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
