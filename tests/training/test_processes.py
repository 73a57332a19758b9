"""Runs in processes of their own: killed, interrupted, and several at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models.training import RunFolder
from linattn_models.training.checkpoint import read_checkpoint
from tests.training.test_plateau import UNSTEADY, assert_rates_follow
from tests.training.toy import logged, same_weights, toy_run

Start = Callable[..., subprocess.Popen[str]]
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


@pytest.fixture
def start(repository: Path) -> Start:
    """Starts a worker, on the CPU: one process, or two under torchrun."""

    def start(out: Path, processes: int = 1, **options: Any) -> subprocess.Popen[str]:
        launcher = TORCHRUN if processes == 2 else ()
        worker = ("tests.training.worker", json.dumps({"out": str(out), **options}))
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.Popen(
            [sys.executable, "-m", *launcher, *worker],
            cwd=repository,
            env={**environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate()
    return process.returncode, output, errors


def test_a_killed_run_holds_its_folder_until_then_and_resumes_bit_for_bit(
    start: Start, out: Path, unbroken: Path
) -> None:
    process = start(out, checkpoint_every=4, eval_every=3, pause_at=6)
    wait_until_paused(process, out)
    with pytest.raises(ValueError, match=f"got process {process.pid} on "):
        toy_run(out, checkpoint_every=4, eval_every=3, resume=True)
    process.kill()
    ended(process)
    assert (out / ".lock-holder").exists()
    assert RunFolder(out).latest_checkpoint() == out / "checkpoints" / "step-4"
    toy_run(out, checkpoint_every=4, eval_every=3, resume=True)
    assert logged(out) == logged(unbroken)
    assert same_weights(out, unbroken)


@pytest.mark.slow
def test_all_processes_follow_the_error_that_one_measures(start: Start, out: Path) -> None:
    code, _, errors = ended(start(out, processes=2, steps=5, **UNSTEADY))
    assert code == 0, errors
    assert_rates_follow(logged(out), patience=1)


def test_a_signal_leaves_the_checkpoint_of_the_step_in_hand(
    start: Start, out: Path, unbroken: Path
) -> None:
    process = start(out, eval_every=3, pause_at=4)
    signal_when_paused(process, out, signal.SIGTERM)
    code, _, errors = ended(process)
    assert code == 130, errors
    assert "stopped after step 5 of 12" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert [path.name for path in RunFolder(out).checkpoints()] == ["step-5"]
    assert not (out / "summary.json").exists()
    toy_run(out, eval_every=3, resume=True)
    assert logged(out) == logged(unbroken)
    assert same_weights(out, unbroken)


@pytest.mark.slow
def test_two_processes_stop_together_and_make_the_run_of_one(
    start: Start, out: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"plain": True, "clip_norm": 0.5, "log_every": 2}
    process = start(out, processes=2, pause_at=3, **options)
    signal_when_paused(process, out, signal.SIGINT)
    _, _, errors = ended(process)
    [checkpoint] = RunFolder(out).checkpoints()
    assert f"stopped after step {checkpoint.name.removeprefix('step-')} of 12" in errors
    code, _, errors = ended(start(out, processes=2, resume=True, **options))
    assert code == 0, errors

    assert_like_one(start, out, tmp_path / "one", options)


def assert_like_one(start: Start, out: Path, one: Path, options: dict[str, Any]) -> None:
    """The run in `out` has the measurements of a run of one process."""
    assert ended(start(one, **options))[0] == 0
    for line, expected in zip(logged(out), logged(one), strict=True):
        assert line.pop("split") == expected.pop("split")
        assert line == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_two_processes_with_dropout_resume_bit_for_bit(
    start: Start, out: Path, tmp_path: Path
) -> None:
    """Each process has draws of its own, and gets them back."""
    whole = tmp_path / "whole"
    unbroken, begun = start(whole, processes=2, steps=8), start(out, processes=2, steps=3)
    assert ended(begun)[0] == ended(unbroken)[0] == 0
    code, _, errors = ended(start(out, processes=2, steps=8, resume=True))
    assert code == 0, errors
    assert logged(out) == logged(whole)
    assert same_weights(out, whole)
    first, second = read_checkpoint(RunFolder(out).checkpoints()[-1]).state["random"]
    assert not torch.equal(first["torch"], second["torch"])


def signal_when_paused(process: subprocess.Popen[str], out: Path, number: signal.Signals) -> None:
    """Sends the signal while the worker waits at its `pause_at`."""
    wait_until_paused(process, out)
    process.send_signal(number)
    (out.parent / "signaled").touch()


def wait_until_paused(process: subprocess.Popen[str], out: Path) -> None:
    """Returns when the worker waits at its `pause_at`."""
    while not (out.parent / "paused").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
