"""The oldest version of transformers with the attention and mask interfaces that are used here."""

from __future__ import annotations

import re

from linattn_core.errors import expected

OLDEST = (5, 23)


def check_version(version: str) -> None:
    """Refuses an older transformers.

    Args:
        version: its `__version__`.
    """
    numbers = re.match(r"(\d+)(?:\.(\d+))?", version)
    if numbers is None or (int(numbers[1]), int(numbers[2] or 0)) < OLDEST:
        wanted = f"version {OLDEST[0]}.{OLDEST[1]} or later"
        advice = "pip install --upgrade transformers"
        raise ImportError(expected("transformers", wanted, version, advice))
