"""One published binary batch of CIFAR-10: 10,000 records of a label byte and 3,072 pixel bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .faults import damaged
from .images import Pixels

RECORD_BYTES = 1 + 3 * 32 * 32
CLASSES = 10


def read_batch(path: Path, source: str, records: int = 10_000) -> Pixels:
    """The images (records, 32, 32, 3) of one batch.

    A record holds no mark of its own. The file's length and its labels, every 3,073rd byte, are
    all that can show damage, and both are looked at.
    """
    content = np.fromfile(path, np.uint8)
    expected = records * RECORD_BYTES
    if len(content) != expected:
        whole = f"{expected:,} bytes ({records:,} records of {RECORD_BYTES:,})"
        raise damaged(path, whole, f"{len(content):,}", source)
    rows = content.reshape(records, RECORD_BYTES)
    wrong = np.flatnonzero(rows[:, 0] >= CLASSES)
    if len(wrong):
        came = f"{rows[wrong[0], 0]} in record {wrong[0]}"
        raise damaged(path, f"labels 0 to {CLASSES - 1}", came, source)
    return np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
