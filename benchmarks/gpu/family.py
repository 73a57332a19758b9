"""A family of cases, measured by as many processes as it takes: one that dies costs one case."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import child
from benchmarks.gpu.measure_records import LOST, read, write

GRACE = 15.0  # seconds for the case that was begun last; then its process is stopped
FEWEST_SECONDS = 5.0  # that a fresh process is worth starting for

Record = dict[str, Any]
Start = Callable[[float], child.Ended]


def command(only: str, records: Path, seconds: float, device: str, quick: bool) -> list[str]:
    """Returns the call of the measuring process."""
    return [
        sys.executable, "-m", "benchmarks.gpu.measure", "--only", only, "--records", str(records),
        "--seconds", f"{seconds:.0f}", "--device", device, *(["--quick"] if quick else []),
    ]  # fmt: skip


def measure(
    only: str,
    records: Path,
    seconds: float,
    *,
    folder: Path,
    environment: Mapping[str, str],
    device: str,
    quick: bool,
) -> str:
    """Measures the cases whose name contains `only`; returns a remark on processes that ended."""

    def start(left: float) -> child.Ended:
        given = max(1.0, left - GRACE)
        return child.run(
            command(only, records, given, device, quick),
            seconds=left, folder=folder, environment=environment,
        )  # fmt: skip

    return attend(start, records, seconds)


def attend(start: Start, records: Path, seconds: float) -> str:
    """Starts processes until one ends well, or none gets on, or the time is over."""
    end = time.monotonic() + seconds
    remarks: list[str] = []
    while True:
        before = len(read(records))
        ended = start(end - time.monotonic())
        if ended.code == 0:
            break
        written = read(records)
        _bury(written, records, ended)
        if ended.code != LOST:
            remarks.append(f"a process {ended.words}: {_last_line(ended.output)}")
        if len(written) == before or end - time.monotonic() < FEWEST_SECONDS:
            break
    return "; ".join(remarks)


def _bury(written: Sequence[Record], records: Path, ended: child.Ended) -> None:
    """Gives the case that the process died in a result: how the process ended."""
    results = {record["case"]["name"] for record in written if "case" in record}
    for record in written:
        if "began" in record and record["began"]["name"] not in results:
            words = f"not measured: its process {ended.words}: {_last_line(ended.output)}"
            methods = [{**method, "status": words} for method in record["began"]["methods"]]
            write(records, {"case": {**record["began"], "methods": methods}})


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:200] if lines else "it printed nothing"
