"""The results of cases: records that are passed between processes and stored as JSON."""

from __future__ import annotations

import dataclasses
import statistics
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from linattn_core.errors import expected

MEASURED, NOT_CORRECT, RAISED, LOST = "measured", "not correct", "raised", "lost"
NOT_ASKED = "not asked for (--peers)"  # the status of a peer without the flag
FAULTS = (NOT_CORRECT, RAISED, LOST)  # a status that begins with one of these is a fault
DIGITS = 4  # significant digits in JSON; measurements are not more precise

Record = TypeVar("Record")


class Spread(typing.NamedTuple):
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


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Spread:
    """The ratio taken round by round: both halves of each saw the same state of the machine."""
    return spread([a / b for a, b in zip(numerator, denominator, strict=True)])


@dataclasses.dataclass(frozen=True)
class Target:
    """A value that the project promises: of one method, or its time over another's.

    Times are per unit of the case, so that different amounts of work compare.

    Args:
        numerator, denominator: names of methods.
        at_least, at_most: the bound; one of them.
        figure: what is compared: the time per unit, the share of the GEMM rate, of the rate of
            multiply-adds in registers or of the copy bandwidth, or the peak memory in bytes.
    """

    shows: str
    numerator: str
    denominator: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    figure: Literal["time", "gemm", "fma", "copy", "peak"] = "time"

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            what = f"target {self.shows!r}"
            raise ValueError(expected(what, "either at_least or at_most", "both or neither"))

    @classmethod
    def faster(cls, ours: str, rival: str, at_least: float) -> Target:
        """The promise that `ours` is so many times as fast as `rival`."""
        return cls(f"{ours}: times as fast as {rival}", rival, ours, at_least=at_least)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that it compares."""
        return (self.numerator, *([self.denominator] if self.denominator else []))

    @property
    def bound(self) -> float:
        """The number to reach."""
        return next(bound for bound in (self.at_least, self.at_most) if bound is not None)

    def reached(self, value: float) -> bool:
        """True when `value` is on the right side of the bound."""
        return value >= self.bound if self.at_least is not None else value <= self.bound


@dataclasses.dataclass(frozen=True)
class Description:
    """What a document says of a case.

    Args:
        name: `theme/what`, matched by --only.
        unit: what times are per, such as "call" or "step".
        series, at: cases that differ only in a size belong to one series, drawn as one table
            whose rows are the sizes `at`, beside the last method of each.
        summarized: one table summarizes several such series, in place of a table for each.
    """

    name: str
    shows: str
    unit: str = "call"
    series: str | None = None
    at: int | None = None
    summarized: bool = False

    @property
    def theme(self) -> str:
        """The folder of the case's results."""
        return self.name.partition("/")[0]


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """The values of a method, or the reason why there are none.

    Args:
        status: "measured", "not correct", "raised" and what, "lost" and how its process ended, or
            why it was not measured.
        value: seconds per unit; None unless measured.
        units: how many of the case's units a call does.
        over_last: times as fast as the case's last method, round by round; of a series.
        share_of_gemm, share_of_fma, share_of_copy: the algorithm's least operations (of the first
            two) and least bytes at the measured speed, over the machine's limit; None where it
            does not apply.
        peak: bytes that a call holds above its inputs, where the case measures them.
        detail: what the check said.
    """

    name: str
    status: str
    value: Spread | None = None
    rounds: int = 0
    units: float = 1
    over_last: Spread | None = None
    share_of_gemm: Spread | None = None
    share_of_fma: Spread | None = None
    share_of_copy: Spread | None = None
    peak: float | None = None
    note: str = ""
    detail: str | None = None

    @property
    def peak_per_unit(self) -> float | None:
        """The peak over the case's units that a call does, such as the samples of its batch."""
        return None if self.peak is None else self.peak / self.units

    @property
    def seconds(self) -> float | None:
        """The median per unit."""
        return None if self.value is None else self.value.median


@dataclasses.dataclass(frozen=True)
class TargetResult:
    """A promised value beside the measured one.

    Args:
        value: None when one of its methods has none.
        reached: None without a value, and in a quick run, whose sizes are not the promised ones.
    """

    target: Target
    value: Spread | None = None
    reached: bool | None = None


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """All results of one case."""

    case: Description
    methods: tuple[MethodResult, ...]
    targets: tuple[TargetResult, ...] = ()

    def method(self, name: str) -> MethodResult:
        """The method of that name; one without a value where the case has none."""
        known = {method.name: method for method in self.methods}
        return known.get(name, MethodResult(name, "not part of the case"))


def to_record(result: Any) -> Any:
    """A dataclass as JSON: defaults left out, tuples as lists, floats rounded."""
    if isinstance(result, float):
        return float(f"{result:.{DIGITS}g}")
    if isinstance(result, tuple):
        return [to_record(each) for each in result]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {
            field.name: to_record(getattr(result, field.name))
            for field in dataclasses.fields(result)
            if getattr(result, field.name) != field.default
        }
    return result


def from_record(kind: type[Record], record: Any) -> Record:
    """The dataclass of which `record` was made."""
    kinds = typing.get_type_hints(kind)
    return kind(**{name: _value(kinds[name], value) for name, value in record.items()})


def _value(kind: Any, value: Any) -> Any:
    """A field's value from JSON, by the field's type."""
    if isinstance(kind, types.UnionType) and value is not None:
        kind = typing.get_args(kind)[0]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return from_record(kind, value)
    if kind is Spread and value is not None:
        return Spread(*value)
    if typing.get_origin(kind) is tuple:
        return tuple(_value(typing.get_args(kind)[0], each) for each in value)
    return value
