"""States that clients continue, by an id or as the bytes of a file."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from linattn_core.errors import expected, quote
from linattn_models.state import DecodingState

Result = TypeVar("Result")
# Calls of a store at the same time. Those of one that is slow wait for each other, and for them
# nobody else does.
_THREADS = 8


class Unavailable(Exception):
    """A store that fails, or does not answer in time."""


class StateStore(ABC):
    """Keeps the contents of states' files, for all threads. Its methods may raise any error."""

    @abstractmethod
    def put(self, content: bytes) -> str:
        """Keeps a content, whole or not at all; returns its id, which nobody can guess."""

    @abstractmethod
    def get(self, name: str, most: int) -> bytes:
        """The content of an id.

        Args:
            name: comes from a client.
            most: bytes; a larger content is refused before it is read.

        Raises:
            ValueError: an unknown id, or too large a content.
        """


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
            while len(self._contents) > self._most or (
                self._bytes > self._most_bytes and len(self._contents) > 1
            ):
                self._bytes -= len(self._contents.popitem(last=False)[1])
        return name

    def get(self, name: str, most: int) -> bytes:
        with self._lock:
            if name not in self._contents:
                raise unknown_id(name)
            self._contents.move_to_end(name)
            return self._contents[name]


class States:
    """A store for event loops: it works in threads of its own, for a time.

    Args:
        store: keeps the contents.
        most: bytes of a content that is read.
        seconds: in which the store has to answer.
    """

    def __init__(self, store: StateStore, most: int, seconds: float) -> None:
        self._store, self._most, self._seconds = store, most, seconds
        self._threads = ThreadPoolExecutor(_THREADS, "linattn-states")

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
        return await self._call(partial(self._store.get, name, self._most))

    async def _call(self, function: Callable[[], Result]) -> Result:
        try:
            async with asyncio.timeout(self._seconds):
                work = asyncio.get_running_loop().run_in_executor(self._threads, function)
                return await work
        except ValueError:
            raise
        except TimeoutError:
            got = "none"
        except Exception as error:  # noqa: BLE001 - file systems raise any class
            # Its text may have addresses and keys, which are for the server's log alone.
            logging.getLogger(__name__).warning("the store of states failed: %r", error)
            got = type(error).__name__
        wanted = f"an answer within {self._seconds:g} seconds"
        raise Unavailable(expected("the store of states", wanted, got, "retry"))


def make_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_urlsafe(16)


def unknown_id(name: str) -> ValueError:
    """The error for an id that is not kept, or no longer."""
    return ValueError(
        expected("state", "the id of a state that is kept", quote(name), "begin again")
    )
