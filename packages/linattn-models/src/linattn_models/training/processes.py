"""The processes of a run: how they start, take turns, agree, and share examples and sums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from linattn_core.distributed.agreement import describe_error
from linattn_core.errors import expected
from linattn_models.training.config import flatten

Examples = TypeVar("Examples", bound=Sequence[Any] | torch.Tensor)
Item = TypeVar("Item")
Error = TypeVar("Error", bound=Exception)

# Some processes wait while others evaluate more, or make files; torch's default may be too short.
_LONGEST_WAIT = timedelta(hours=6)


def run_on_cpu() -> bool:
    """Whether the processes of torchrun are to share a run on CPUs.

    By default, accelerate treats processes on a CPU as separate runs.
    """
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available()


def start_processes() -> PartialState:
    """Joins the processes that torchrun has started, the first time that it is called."""
    return PartialState(cpu=run_on_cpu(), timeout=_LONGEST_WAIT)


def is_main_process() -> bool:
    """Whether this process reports: the only one, or under torchrun the first."""
    return bool(start_processes().is_main_process)


@contextmanager
def main_process_first() -> Iterator[None]:
    """The body runs on the first process, then on the others, which find the files it has made."""
    with start_processes().main_process_first():
        yield


@contextmanager
def share_refusals() -> Iterator[None]:
    """Raises an error of the body of one process on all, which run it together.

    The body must not wait for other processes.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 - or the others would wait
        error = caught
    own = None if error is None else describe_error(error)
    first = next(filter(None, gather_object([own])), None)
    if error is not None and own == first:
        raise _on_all(error)
    if first is not None:
        raise _on_all(first[0](first[1]))


def on_main_process(call: Callable[[], Item]) -> Item | None:
    """Calls on the first process alone; what it raises is raised on all, which come here."""
    with share_refusals():
        return call() if is_main_process() else None


def require_same_settings(described: Mapping[str, Any]) -> None:
    """Refuses processes that were started with different settings; all must call it."""
    first, *others = [flatten(x) for x in gather_object([dict(described)])]
    for process, other in enumerate(others, start=1):
        for name in sorted(first.keys() | other.keys()):
            wanted, got = (repr(x.get(name, "absent")) for x in (first, other))
            if wanted != got:
                where = f"{name} on process {process}"
                raise _on_all(ValueError(expected(where, f"{wanted} as on process 0", got)))


def _on_all(error: Error) -> Error:
    """The error, marked as one that every process raises: scripts print it once."""
    error.on_all_processes = True  # type: ignore[attr-defined]
    return error


def take_share(examples: Examples) -> Examples:
    """This process's part of examples that all have, as equal as can be; a part may be empty."""
    state = start_processes()
    index, processes, count = state.process_index, state.num_processes, len(examples)
    start, end = (count * x // processes for x in (index, index + 1))
    return examples[start:end]  # type: ignore[return-value]


def sum_over_processes(*numbers: float) -> tuple[float, ...]:
    """The sum of each number over all processes, which must call it together."""
    return tuple(sum(x) for x in zip(*gather_lists([numbers]), strict=True))


def gather_lists(own: list[Item]) -> list[Item]:
    """The items of all processes, which must call it together, those of the first one first."""
    start_processes()
    items: list[Item] = gather_object(own)
    return items
