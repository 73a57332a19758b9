"""What a benchmark case is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from linattn_core.errors import expected
from linattn_lab.machine import Device


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run asks of a case."""

    quick: bool = False
    """Tiny sizes that only show that a case runs; its numbers mean nothing."""
    peers: bool = False
    """Measure other libraries too, where they are installed."""
    threads: int = 2
    """Threads of torch, in every process."""
    device: Device = "cpu"
    """Whose cases are measured."""
    whole: bool = False
    """Time every position of the images of `images/` and `speedup/`, not some of them."""


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to do a case's work.

    Args:
        check: returns None when the method is right, else the sentence that says what differs.
            It is called before any measurement: no value for a wrong result.
        run: the timed call.
        measure: takes the measurement itself and returns it, in place of timing `run`.
        peak: measures the largest memory that one call holds above its inputs, in bytes, once.
        units: how many of the case's units (positions, steps, images) one call does.
        operations, traffic: the least operations and bytes that the algorithm needs for one call.
        note: which of several ways was measured.
        figures: other numbers of the method, by name; known when it has run.
    """

    check: Callable[[], str | None]
    run: Callable[[], object] = lambda: None
    measure: Callable[[], float] | None = None
    peak: Callable[[], float] | None = None
    units: float = 1
    operations: float = 0
    traffic: float = 0
    note: str = ""
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)


Make = Callable[[], Method]
"""Allocates a method's inputs; raises NotMeasured where it cannot take part."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Methods that are measured side by side in one run.

    Args:
        name: `theme/what`, matched by --only.
        shows: what a document says of it.
        setup: returns the methods by name, as functions that allocate their inputs when called.
        ratios: pairs of methods; the time of the first over that of the second is shown.
        unit: what times are per, such as "call" or "step".
        series, at: cases that differ only in a size belong to one series, drawn as one table
            whose rows are the sizes `at`, beside the last method of each.
        seconds: time for all rounds; the least number of rounds is made in any case.
        rounds: least and largest number of rounds.
        sample_seconds: time that the calls of a short method may take in a round.
        device: the device of whose runs it is part.
        around: makes a context in which the methods are timed.
    """

    name: str
    shows: str
    setup: Callable[[Settings], Mapping[str, Make]]
    ratios: tuple[tuple[str, str], ...] = ()
    unit: str = "call"
    series: str | None = None
    at: int | None = None
    seconds: float = 20.0
    rounds: tuple[int, int] = (3, 200)
    sample_seconds: float = 0.01
    device: Device = "cpu"
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def theme(self) -> str:
        """The folder of the case's results."""
        return self.name.partition("/")[0]


def select_cases(cases: Iterable[Case], part: str = "", device: str = "cpu") -> list[Case]:
    """The device's cases whose name contains `part`; ValueError where none does."""
    on_device = [case for case in cases if case.device == device]
    if matches := [case for case in on_device if part in case.name]:
        return matches
    themes = ", ".join(dict.fromkeys(f"{case.theme}/" for case in on_device))
    advice = f"the themes on {device} are {themes} and --list names the cases"
    raise ValueError(expected("--only", "part of a case's name", repr(part), advice))
