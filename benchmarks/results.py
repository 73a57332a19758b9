"""The results of cases: what passes between processes, and what the store keeps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel

MEASURED, NOT_CORRECT, RAISED, LOST = "measured", "not correct", "raised", "lost"
FAULTS = (NOT_CORRECT, RAISED, LOST)  # a status that begins with one of these is a fault


class Spread(NamedTuple):
    """The median of repeated measurements and their quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Returns the median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


class MethodResult(BaseModel, frozen=True):
    """The values of a method, or the reason why there are none.

    Args:
        status: "measured", "not correct", "raised" and what, "lost" and how its process ended, or
            why it was not measured.
        value: seconds per unit; None unless measured.
        units: how many of the case's units a call does.
        share_of_gemm, share_of_fma, share_of_copy: the algorithm's least operations (of the first
            two) and least bytes at the median speed, over the machine's limit; None where it does
            not apply.
        peak: bytes that a call holds above its inputs, where the case measures them.
        detail: what the check said.
    """

    name: str
    status: str
    value: Spread | None = None
    rounds: int = 0
    units: float = 1
    share_of_gemm: float | None = None
    share_of_fma: float | None = None
    share_of_copy: float | None = None
    peak: float | None = None
    note: str = ""
    figures: dict[str, float] = {}
    detail: str | None = None

    @property
    def seconds(self) -> float | None:
        """The median per unit."""
        return None if self.value is None else self.value.median

    @property
    def peak_per_unit(self) -> float | None:
        """The peak over the case's units that a call does, such as the samples of its batch."""
        return None if self.peak is None else self.peak / self.units


class Ratio(BaseModel, frozen=True):
    """The time of one method over that of another, taken round by round."""

    numerator: str
    denominator: str
    value: Spread


class CaseResult(BaseModel, frozen=True):
    """All results of one case; the first fields are those of `Case`."""

    shows: str
    unit: str = "call"
    series: str | None = None
    at: int | None = None
    methods: tuple[MethodResult, ...]
    ratios: tuple[Ratio, ...] = ()

    def method(self, name: str) -> MethodResult:
        """The method of that name; one without a value where the case has none."""
        known = {method.name: method for method in self.methods}
        return known.get(name, MethodResult(name=name, status="not part of the case"))

    def ratio(self, numerator: str, denominator: str) -> Spread | None:
        """The ratio of two methods, if the case compares them and both were measured."""
        known = {(each.numerator, each.denominator): each.value for each in self.ratios}
        return known.get((numerator, denominator))
