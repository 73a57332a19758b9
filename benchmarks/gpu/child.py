"""Processes with a time limit: a kernel that hangs or crashes takes nothing else with it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL = 4_000  # characters of output that are worth keeping


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        code: its exit code; negative for a signal.
        output: the end of what it printed.
        timed_out: it was stopped because its time was over.
    """

    code: int
    output: str
    seconds: float
    timed_out: bool

    @property
    def words(self) -> str:
        """How it ended, in a few words."""
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s, when its time was over"
        if self.code < 0:
            return f"died by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"


def run(
    command: Sequence[str], *, seconds: float, folder: Path, environment: Mapping[str, str]
) -> Ended:
    """Runs the command in `folder` for so many seconds at most, and all that it starts."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        # A session of its own, so that it can be stopped with its own children.
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        timed_out = False
        try:
            process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, output.tell() - 4 * TAIL))
        text = output.read().decode(errors="replace")[-TAIL:]
    return Ended(process.returncode, text, time.monotonic() - started, timed_out)
