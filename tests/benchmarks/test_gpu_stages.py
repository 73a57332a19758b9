"""Stages share a budget, a failure leaves the rest to run, processes end with their time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import child
from benchmarks.gpu.stages import DONE, Stage, StageFailed, StageOutcome, run_stages


def _run(clock: Any, total: float, *needs: tuple[float, float, float]) -> list[float | None]:
    """What each stage was allowed, None if it was not run; of (needed, taken, most)."""
    allowed: list[float | None] = [None] * len(needs)

    def stage(number: int) -> Stage:
        needed, taken, most = needs[number]

        def run(seconds: float) -> None:
            allowed[number] = seconds
            clock.now += taken

        return Stage(str(number), needed, run, most)

    list(run_stages([stage(number) for number in range(len(needs))], total, clock))
    return allowed


def test_what_a_stage_leaves_goes_to_the_later_ones(clock: Any) -> None:
    assert _run(clock, 100, (40, 10, 0), (30, 30, 0), (20, 20, 0)) == [50, 70, 60]


def test_too_little_time_is_shared_by_need(clock: Any) -> None:
    assert _run(clock, 60, (60, 20, 0), (40, 20, 0), (20, 20, 0)) == [
        30, pytest.approx(80 / 3), 20,
    ]  # fmt: skip


def test_a_stage_that_the_others_need_may_take_of_theirs(clock: Any) -> None:
    assert _run(clock, 100, (40, 80, 90), (60, 20, 0)) == [90, 20]
    assert _run(clock, 50, (40, 30, 90), (60, 20, 0)) == [50, 20]


def test_no_stage_begins_without_time(clock: Any) -> None:
    assert _run(clock, 20, (10, 20, 0), (10, 5, 0)) == [10, None]


def test_a_stage_that_fails_leaves_the_others_to_run(clock: Any) -> None:
    def fails(_: float) -> None:
        raise StageFailed("no compiler")

    def breaks(_: float) -> None:
        raise KeyError("x")

    stages = [Stage("a", 1, fails), Stage("b", 1, breaks), Stage("c", 1, lambda _: "fine")]
    assert list(run_stages(stages, 10, clock)) == [
        StageOutcome("a", "failed: no compiler", 0),
        StageOutcome("b", "failed: KeyError: 'x'", 0),
        StageOutcome("c", DONE, 0, "fine"),
    ]


def test_an_interruption_is_not_a_failure(clock: Any) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_stages([Stage("a", 1, stop)], 10, clock))


def _child(program: str, folder: Path, seconds: float = 60) -> child.Ended:
    return child.run(
        [sys.executable, "-c", program], seconds=seconds, folder=folder, environment=os.environ
    )


def test_a_process_says_how_it_ended(tmp_path: Path) -> None:
    ended = _child("import sys; print('x' * 9000 + 'the end'); sys.exit(3)", tmp_path)
    assert ended.code == 3
    assert ended.output.endswith("xthe end\n")
    assert len(ended.output) == child.TAIL
    assert ended.words == "ended with exit code 3"
    assert _child("import os; os.abort()", tmp_path).words == "died by SIGABRT"


def test_a_process_whose_time_is_over_is_stopped_with_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    ended = _child(program, tmp_path, seconds=4)
    assert ended.timed_out
    assert ended.words == "stopped after 4 s, when its time was over"
    grandchild = Path("/proc", ended.output.strip())
    for _ in range(100):
        if not grandchild.exists() or "Z" in (grandchild / "stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child's own process lives on")
