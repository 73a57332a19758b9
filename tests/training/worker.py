"""A run as a script of its own, for the tests that kill processes or start several.

    python -m tests.training.worker '{"out": "...", "steps": 12, ...}'

`plain` trains in float64 without a random draw, and `pause_at` makes the last process wait at that
batch: it creates the file `paused` beside `out` and goes on when there is a file `signaled`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from linattn_lab.script import run_script
from tests.training.toy import CrashingData, ToyData, toy_model, toy_run, weighted_loss


class PausingData(CrashingData):
    """Waits once for a signal to come."""

    def __init__(self, pause_at: int, folder: Path, dtype: torch.dtype) -> None:
        super().__init__(pause_at, dtype)
        self.folder = folder

    def crash(self) -> None:
        (self.folder / "paused").touch()
        while not (self.folder / "signaled").exists():
            time.sleep(0.02)
        if "RANK" in os.environ:
            stop: Any = signal.getsignal(signal.SIGINT)
            while not stop.__self__.requested:  # torchrun passes the signal on in its own time
                time.sleep(0.02)


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    out = Path(options.pop("out"))
    pause_at = options.pop("pause_at", None)
    if options.pop("plain", False):
        model = toy_model(dropout=0.0, dtype=torch.float64)
        options.update(model=model, loss=weighted_loss, evaluate=None)
    dtype = torch.float64 if "model" in options else torch.float32
    data = ToyData(dtype=dtype)
    if pause_at is not None:
        data = PausingData(pause_at, out.parent, dtype)
    toy_run(out, data=data, **options)


if __name__ == "__main__":
    run_script(main)
