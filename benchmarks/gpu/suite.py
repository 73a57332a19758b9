"""The tests on the GPU: which are run, and what came out of each."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu import child

WORKERS = 8  # each holds a context of its own on the GPU
ON_THE_GPU = ("tests/cuda", "tests/models")


@dataclasses.dataclass(frozen=True)
class Suite:
    """A run of pytest, and the seconds that it needs."""

    name: str
    arguments: tuple[str, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class SuiteOutcome:
    """What came of a suite.

    Args:
        status: how pytest ended; "complete" when every test was run, whatever came of it.
        failures: names of tests with what they said.
        unfinished: tests that had begun when the run ended.
        output: the end of what pytest printed, where no test was run.
    """

    name: str
    status: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: tuple[tuple[str, str], ...] = ()
    unfinished: tuple[str, ...] = ()
    output: str = ""

    @property
    def green(self) -> bool:
        """Every test was run, and none failed."""
        return self.status == "complete" and self.failed == 0 and self.passed > 0


def suites(root: Path) -> list[Suite]:
    """Returns what is run on a GPU, in this order."""
    folders = tuple(folder for folder in ON_THE_GPU if (root / folder).is_dir())
    return [
        Suite("contract, cuda", ("tests/contract", "--backend", "cuda"), 80),
        Suite("contract, cupy", ("tests/contract", "--backend", "cupy"), 30),
        Suite("tests marked gpu", (*folders, "-m", "gpu"), 40),
    ]


def command(suite: Suite, outcomes: Path) -> list[str]:
    """Returns pytest's call.

    The versions on a machine without a network are its own: neither the least version of pytest
    nor another library's warning may keep the tests from running, so both settings are loosened.
    """
    workers = min(WORKERS, os.cpu_count() or 1)
    shared = ("-n", str(workers)) if importlib.util.find_spec("xdist") and workers > 1 else ()
    return [
        sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
        "-p", "benchmarks.gpu.outcomes", "--outcomes", str(outcomes),
        "-o", "minversion=7.0", "-o", "filterwarnings=default", "-W", "default", *shared,
        *suite.arguments,
    ]  # fmt: skip


def run(
    suite: Suite, seconds: float, *, root: Path, environment: Mapping[str, str], scratch: Path
) -> SuiteOutcome:
    """Runs the suite for so many seconds at most and returns what came out until then."""
    outcomes = scratch / f"{suite.name.replace(' ', '-')}.jsonl"
    ended = child.run(
        command(suite, outcomes), seconds=seconds, folder=root,
        environment={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    lines = outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else []
    return read(suite.name, [json.loads(line) for line in lines], ended)


def read(name: str, lines: Sequence[Mapping[str, str]], ended: child.Ended) -> SuiteOutcome:
    """Returns what the plug-in's lines say, the last word on each test counting."""
    # A failed tear-down comes after the pass of the call: the worst counts.
    worst: dict[str, str] = {}
    messages: dict[str, str] = {}
    for line in lines:
        test, outcome = line["test"], line["outcome"]
        if worst.get(test) != "failed":
            worst[test] = outcome
        if outcome == "failed":
            messages.setdefault(test, line.get("message", ""))
    counts = {kind: list(worst.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    # pytest's own codes: 0 all passed, 1 some failed, 5 none were found.
    complete = not ended.timed_out and ended.code in (0, 1) and bool(worst)
    return SuiteOutcome(
        name,
        "complete" if complete else f"pytest {ended.words}",
        **counts,
        seconds=ended.seconds,
        failures=tuple(messages.items()),
        unfinished=tuple(test for test, outcome in worst.items() if outcome == "started"),
        output="" if any(counts.values()) else ended.output,
    )
