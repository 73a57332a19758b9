"""What a benchmark case is, and the one registry that holds them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from benchmarks.runner import CaseResult

Quantity = Literal["seconds", "bytes"]
Rate = Literal["gemm_float32", "gemm_bfloat16"]


class NotMeasured(Exception):
    """A method takes no part in this run; the message is the reason that its row shows."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run asks of every case.

    Args:
        quick: tiny sizes that only show that a case runs; its numbers mean nothing.
        peers: measure other libraries too, where they are installed.
        threads: threads that torch may use, in this process and in the memory children.
        device: where the tensors of the GPU's cases lie; "cpu" shows that they run.
    """

    quick: bool = False
    peers: bool = False
    threads: int = 2
    device: str = "cpu"


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to do a case's work.

    Args:
        name: as printed; unique within the case.
        check: returns None when the method is right, else the sentence that says what differs.
            It is called before any measurement: no speed without green. It may raise NotMeasured.
        run: the timed call.
        measure: takes the measurement itself and returns it, in place of timing `run`.
        peak: takes the largest memory that one call holds above its inputs, in bytes, once.
        units: how many of the case's units (positions, steps, images) one call does.
        operations: the least operations that the algorithm needs for one call.
        rate: which of the machine's limits `operations` are held against.
        traffic: the least bytes that one call has to read and write, wherever they lie.
        estimated: the figure is extrapolated from a sample of the work, and is marked so.
        note: what of several ways was measured, in a word or two beside the name.
    """

    name: str
    check: Callable[[], str | None]
    run: Callable[[], object] | None = None
    measure: Callable[[], float] | None = None
    peak: Callable[[], float] | None = None
    units: float = 1
    operations: float = 0
    rate: Rate = "gemm_float32"
    traffic: float = 0
    estimated: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if (self.run is None) == (self.measure is None):
            raise ValueError(f"method {self.name!r} must have either run or measure, not both")


@dataclasses.dataclass(frozen=True)
class Absent:
    """A method that cannot be measured here, with the reason that its row shows."""

    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure that the project promises: one method's quantity, alone or over another's.

    Quantities are per unit of the case, so methods that do different amounts of work compare.

    Args:
        shows: the figure in words.
        numerator, denominator: names of methods.
        at_least, at_most: the bound; one of them.
        of_gemm: the figure is the numerator's share of the machine's GEMM rate, not its quantity.
        of_copy: the figure is the numerator's share of the machine's copy bandwidth.
    """

    shows: str
    numerator: str
    denominator: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    of_gemm: bool = False
    of_copy: bool = False

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"target {self.shows!r} must have either at_least or at_most")
        if self.of_gemm + self.of_copy + (self.denominator is not None) > 1:
            raise ValueError(f"target {self.shows!r} is one share of a limit, of one method")

    @classmethod
    def faster(cls, ours: str, rival: str, at_least: float) -> Target:
        """The promise that `ours` is so many times as fast as `rival`."""
        return cls(f"{ours}: times as fast as {rival}", rival, ours, at_least=at_least)

    @property
    def of_limit(self) -> bool:
        """True for a share of one of the machine's limits."""
        return self.of_gemm or self.of_copy

    @property
    def subject(self) -> str:
        """The method that the figure speaks for: a ratio that should be large divides by it."""
        if self.denominator is not None and self.at_least is not None:
            return self.denominator
        return self.numerator

    def reached(self, value: float) -> bool:
        """True when `value` is on the right side of the bound."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


Setup = Callable[[Settings], "list[Method | Absent]"]


@dataclasses.dataclass(frozen=True)
class Case:
    """Methods measured side by side in one run, and what must come out.

    Args:
        name: `family/what`, matched by --only.
        shows: one sentence for the report.
        setup: makes the inputs and the methods; nothing is allocated before it is called.
        targets: what must be reached.
        quantity: what is measured, "seconds" or "bytes".
        unit: what the quantity is per.
        seconds: time that the rounds may take; the least number of rounds is taken in any case.
        rounds: least and largest number of rounds.
        series, at: cases that differ only in a size belong to one series, drawn as one table
            whose rows are the sizes `at`; the table says from which size on each method wins over
            the last one.
        summarized: the document shows what a table of several such cases makes of them; their own
            rows are in the JSON.
        done: told the result, such as for what it says of the next size.
    """

    name: str
    shows: str
    setup: Setup
    targets: tuple[Target, ...] = ()
    quantity: Quantity = "seconds"
    unit: str = "call"
    seconds: float = 20.0
    rounds: tuple[int, int] = (3, 200)
    series: str | None = None
    at: int | None = None
    summarized: bool = False
    done: Callable[[CaseResult], None] | None = None


class Registry:
    """Cases by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    def add(self, case: Case) -> Case:
        """Returns `case` after adding it; a name can be taken once."""
        if case.name in self._cases:
            raise ValueError(f"the benchmark case {case.name!r} is registered twice")
        self._cases[case.name] = case
        return case

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())

    def matching(self, pattern: str | None) -> list[Case]:
        """The cases whose name contains `pattern`, or all of them for None.

        Raises:
            ValueError: when no case matches.
        """
        found = [case for case in self if pattern is None or pattern in case.name]
        if not found:
            names = ", ".join(self._cases)
            raise ValueError(f"no benchmark case contains {pattern!r}; the cases are {names}")
        return found


registry = Registry()
