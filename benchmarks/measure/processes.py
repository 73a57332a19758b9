"""Calls in processes of their own, so that the caller survives a crash or a hang."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

import psutil
import torch

from benchmarks.measure.cases import NotMeasured

HOUR = 3_600.0
Result = TypeVar("Result")


def apart(
    call: Callable[..., Result], *arguments: object, threads: int, seconds: float = HOUR
) -> Result:
    """Returns what a module-level function returns for these arguments in a fresh process.

    Args:
        threads: of torch, in that process.
        seconds: how long it may take.

    Raises:
        NotMeasured: raised there with that reason, or the process ended without an answer, or
            took too long and was stopped.
    """
    # Spawned, not forked: a child forked after OpenMP ran would hang in its first parallel region.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, threads, call, arguments))
    with _ignoring_interrupts():  # which the child inherits: Ctrl-C is handled here
        child.start()
    sender.close()
    patience = 0.0
    try:
        if not receiver.poll(seconds):
            raise NotMeasured(f"its process was stopped after {seconds:,.0f} s")
        reason, result = receiver.recv()
        patience = 5.0
    except EOFError:
        child.join()
        raise NotMeasured(f"its process {_end(child.exitcode)}") from None
    finally:
        _stop(child, patience)
    if reason is not None:
        raise NotMeasured(reason)
    answer: Result = result
    return answer


def _answer(
    sender: Connection, threads: int, call: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    torch.set_num_threads(threads)
    try:
        sender.send((None, call(*arguments)))
    except NotMeasured as reason:
        sender.send((str(reason), None))


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _stop(child: BaseProcess, patience: float) -> None:
    """Ends a process that still runs after so many seconds, and those that it started."""
    child.join(patience)
    if child.is_alive():
        for descendant in psutil.Process(child.pid).children(recursive=True):
            descendant.kill()
        child.kill()
    child.join()
