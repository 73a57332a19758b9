"""Processes that may crash or hang, and that end with the one that started them."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar

import psutil
import torch

from linattn_lab.timing import NotMeasured
from linattn_models.basics.memory import available_memory

HOUR = 3_600.0
SHARE_OF_FREE = 0.8  # of the free memory that a process may take
Result = TypeVar("Result")


def run_apart(
    call: Callable[..., Result], *arguments: object, threads: int, seconds: float = HOUR
) -> Result:
    """Returns what a module-level function returns for these arguments in a fresh process.

    NotMeasured says why it does not: raised there, or the process died or was stopped.

    Args:
        threads: of torch, in that process.
        seconds: how long it may take.
    """
    with _ignore_interrupts():  # the child inherits it: only this process handles Ctrl-C
        child = subprocess.Popen(
            [sys.executable, "-m", "linattn_lab.processes"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
    with child:
        try:
            answer, _ = child.communicate(pickle.dumps((call, arguments, threads)), seconds)
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"its process was stopped after {seconds:,.0f} s") from None
        finally:
            stop_tree(child)
    if not answer:
        raise NotMeasured(f"its process {_end(child.returncode)}")
    reason, result = pickle.loads(answer)
    if reason is not None:
        raise NotMeasured(reason)
    value: Result = result
    return value


def wait_for(arguments: Sequence[str], folder: Path, env: dict[str, str], output: IO[bytes]) -> int:
    """The exit code of a process, which does not outlive this one: Ctrl-C and SIGTERM end both.

    A training writes a checkpoint before it ends. A second signal does not wait for that.
    """
    with (
        _sigterm_exits(),
        subprocess.Popen(arguments, cwd=folder, env=env, stdout=output, stderr=output) as child,
    ):
        try:
            return child.wait()
        except KeyboardInterrupt:
            # A terminal sends Ctrl-C to it, too, and a second signal would stop it at once.
            child.wait()
            raise
        except BaseException:
            stop_tree(child, signal.SIGTERM)
            child.wait()
            raise
        finally:
            stop_tree(child)


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """In the body, SIGTERM raises SystemExit with the exit code that shells give to it."""
    if threading.current_thread() is not threading.main_thread():  # Python allows no handlers there
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _answer() -> None:
    """Makes the call that `run_apart` describes on the standard input."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the call prints is not the answer
    call, arguments, threads = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    _limit_memory()
    answer: tuple[str | None, Any]
    try:
        answer = None, call(*arguments)
    except NotMeasured as reason:
        answer = str(reason), None
    with os.fdopen(answers, "wb") as file:
        pickle.dump(answer, file)


def _limit_memory() -> None:
    """Lets a call that needs too much memory fail, before the system has to end a process."""
    if torch.cuda.is_available():
        return  # its driver reserves far more addresses than there is memory
    most = int(SHARE_OF_FREE * available_memory(torch.device("cpu")))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(code: int) -> str:
    return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def stop_tree(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to a process that still runs, and to those that it started: it ends them."""
    if process.poll() is None:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)


if __name__ == "__main__":
    _answer()
