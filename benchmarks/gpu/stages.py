"""Stages within one budget of time: each may take what the later ones do not need.

Where earlier ones took too long, what is left is shared in proportion to what each needs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

SHORTEST = 3.0  # seconds; less is not worth beginning with
DONE = "done"

Clock = Callable[[], float]


class StageFailed(Exception):
    """A stage could not do its work; the message is what the report says of it."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One part of a run.

    Args:
        seconds: what it needs; it gets more where earlier stages took less.
        run: does it within the seconds that it is given, and returns a remark or nothing.
        most: what it may take at the cost of the later stages, which are nothing without it.
    """

    name: str
    seconds: float
    run: Callable[[float], str | None]
    most: float = 0.0


@dataclasses.dataclass(frozen=True)
class StageOutcome:
    """What became of a stage: "done", with its remark, or why not."""

    name: str
    status: str
    seconds: float
    remark: str = ""


def run_stages(
    stages: Sequence[Stage], total: float, clock: Clock = time.monotonic
) -> Iterator[StageOutcome]:
    """Yields what became of each stage; one that fails leaves the others to run.

    Args:
        total: seconds for all of them together.
    """
    end = clock() + total
    for number, stage in enumerate(stages):
        allowed = _allowed(stage, stages[number + 1 :], end - clock())
        if allowed < min(SHORTEST, stage.seconds):
            yield StageOutcome(stage.name, "not run: no time was left", 0)
            continue
        started = clock()
        status, remark = _outcome(stage, allowed)
        yield StageOutcome(stage.name, status, clock() - started, remark)


def _allowed(stage: Stage, later: Sequence[Stage], left: float) -> float:
    reserved = sum(other.seconds for other in later)
    fair = left * stage.seconds / (stage.seconds + reserved)
    return min(left, max(left - reserved, fair, stage.most))


def _outcome(stage: Stage, allowed: float) -> tuple[str, str]:
    try:
        return DONE, stage.run(allowed) or ""
    except StageFailed as error:
        return f"failed: {error}", ""
    except Exception as error:  # noqa: BLE001 - what the other stages found must be written down
        return f"failed: {type(error).__name__}: {error}", ""
