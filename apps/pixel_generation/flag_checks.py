"""Numbers on the command line that nothing can be done with are refused before anything is done."""

from __future__ import annotations

from collections.abc import Mapping


def require_at_least(flags: object, least: Mapping[str, int]) -> None:
    """Refuses a flag below its minimum; None, where a default takes its place, is no number.

    Raises:
        ValueError: naming the flag, the minimum and what was given.
    """
    for name, minimum in least.items():
        value = getattr(flags, name)
        if value is not None and value < minimum:
            raise ValueError(f"expected --{name} of {minimum} or more, got {value}")
