"""Signals become requests to stop; their handlers are restored afterwards."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from linattn_models.training import RunFolder
from linattn_models.training.stopping import StopRequest
from tests.training.toy import ToyData, logged, toy_evaluate, toy_run


class SignallingData(ToyData):
    """Sends its own process a signal at the batches asked for."""

    def __init__(self, *batches: int, times: int = 1) -> None:
        super().__init__()
        self.batches, self.times, self.calls = batches, times, 0

    def batch(self, indices: Any) -> Any:
        self.calls += 1
        if self.calls in self.batches:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        return super().batch(indices)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_asks_and_the_second_insists(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt, match=f"a second {number.name}"):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def enter() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, signal.getsignal(signal.SIGINT))]


def test_a_second_signal_gives_up_the_step_but_not_the_run(out: Path, unbroken: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="at once"):
        toy_run(out, data=SignallingData(6, times=2), checkpoint_every=4, eval_every=3)
    assert [path.name for path in RunFolder(out).checkpoints()] == ["step-4"]
    toy_run(out, checkpoint_every=4, eval_every=3, resume=True)
    assert logged(out) == logged(unbroken)


def test_a_stop_in_the_last_evaluation_lets_the_run_end(out: Path) -> None:
    def evaluate(model: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return toy_evaluate(model)

    with pytest.raises(KeyboardInterrupt, match="the run is complete"):
        toy_run(out, evaluate=evaluate)
    assert RunFolder(out).summary()["steps"] == 12
