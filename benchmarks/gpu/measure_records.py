"""The file in which measuring processes write what they found, a line of JSON at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOST = 3  # the exit code by which a measuring process asks for a fresh one

Record = dict[str, Any]


def read(records: Path) -> list[Record]:
    """Returns the records written so far; a line that was cut off is none."""
    if not records.exists():
        return []
    lines = records.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def write(records: Path, record: Record) -> None:
    """Appends a record, at once."""
    with records.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def done_cases(records: Sequence[Record]) -> set[str]:
    """Returns the names of the cases that have a result, or that a process ended in."""
    return {record[key]["name"] for record in records for key in ("case", "began") if key in record}
