"""What several seeds of a training tell: a mean, and whether two means differ beyond chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

ERRORS = 2.0  # standard errors within which a difference is noise


def describe_difference(first: Sequence[float], second: Sequence[float]) -> str:
    """Whether the means of two groups of seeds differ by more than noise, in words."""
    if min(len(first), len(second)) < 2:
        return "one seed, which says nothing about the spread"
    error = math.hypot(*(stdev(each) / math.sqrt(len(each)) for each in (first, second)))
    inside = abs(mean(first) - mean(second)) <= ERRORS * error
    return "a difference within the noise of seeds" if inside else "a difference beyond their noise"
