"""States that clients continue, by an id or as the bytes of a file."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from linattn_core.errors import expected, quote
from linattn_models.state import DecodingState

Result = TypeVar("Result")
# Calls of a store at the same time, each in a thread of its own: a slow one delays no other.
_MOST_CALLS = 256
_PAUSE = 0.01  # seconds until a call that waits for another looks again


class Unavailable(Exception):
    """A store that fails, or does not answer in time."""


class StateStore(ABC):
    """Keeps the contents of states' files, for all threads. Its methods may raise any error."""

    @abstractmethod
    def put(self, content: bytes) -> str:
        """Keeps a content, whole or not at all; returns its id, which nobody can guess."""

    @abstractmethod
    def get(self, name: str, most: int) -> bytes | None:
        """The content of an id that a client sent; None if it is unknown, or not of this server.

        Args:
            most: bytes; a larger content is not read.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Removes what is too old or too much; called after the others, when nobody waits."""


class RecentStates(StateStore):
    """The last states, in memory; older ones are dropped.

    Args:
        most: states that are kept.
        most_bytes: of all of them; the last one is kept, whatever it has.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, content: bytes) -> str:
        name = make_id()
        with self._lock:
            self._contents[name] = content
            self._bytes += len(content)
        return name

    def tidy(self) -> None:
        with self._lock:
            while len(self._contents) > self._most or (
                self._bytes > self._most_bytes and len(self._contents) > 1
            ):
                self._bytes -= len(self._contents.popitem(last=False)[1])

    def get(self, name: str, most: int) -> bytes | None:
        with self._lock:
            if name in self._contents:
                self._contents.move_to_end(name)
            return self._contents.get(name)


class States:
    """A store for event loops: it works in other threads, for a time.

    Args:
        store: keeps the contents.
        most: bytes of a content that is read.
        seconds: in which the store has to answer.
    """

    def __init__(self, store: StateStore, most: int, seconds: float) -> None:
        self._store, self._most, self._seconds = store, most, seconds
        self._free = threading.BoundedSemaphore(_MOST_CALLS)

    async def put(self, state: DecodingState) -> str:
        """Keeps a state; returns its id.

        Raises:
            Unavailable: the store fails.
        """
        return await self._call(lambda: self._store.put(state.to_bytes()))

    async def get(self, name: str) -> bytes:
        """The content of the file of an id.

        Raises:
            ValueError: an unknown id.
            Unavailable: the store fails.
        """
        content = await self._call(lambda: self._store.get(name, self._most))
        if content is None:
            wanted = "the id of a state that is kept"
            raise ValueError(expected("state", wanted, quote(name), "begin again"))
        return content

    async def _call(self, function: Callable[[], Result]) -> Result:
        try:
            async with asyncio.timeout(self._seconds):
                while not self._free.acquire(blocking=False):
                    await asyncio.sleep(_PAUSE)
                return await asyncio.wrap_future(self._start(function))
        except Exception as error:  # noqa: BLE001 - file systems raise any class
            _log(error)
            wanted = f"an answer within {self._seconds:g} seconds"
            raise _unavailable(wanted, type(error).__name__) from None

    def _start(self, function: Callable[[], Result]) -> Future[Result]:
        try:
            return start(function, self._tidy)
        except RuntimeError:  # the system has no thread for it
            self._free.release()
            raise

    def _tidy(self) -> None:
        try:
            self._store.tidy()
        except Exception as error:  # noqa: BLE001
            _log(error)
        finally:
            self._free.release()


def start(
    function: Callable[[], Result], then: Callable[[], object] = lambda: None
) -> Future[Result]:
    """Calls a function in a thread of its own, and `then` after it.

    The process can end before the thread does.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from now on, it is not canceled

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        then()

    threading.Thread(target=run, daemon=True).start()
    return future


def make_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_urlsafe(16)


def _unavailable(wanted: str, got: str) -> Unavailable:
    return Unavailable(expected("the store of states", wanted, got, "retry"))


def _log(error: Exception) -> None:
    """Its text may have addresses and keys, which are for the server's log alone."""
    logging.getLogger(__name__).warning("the store of states failed: %r", error)
