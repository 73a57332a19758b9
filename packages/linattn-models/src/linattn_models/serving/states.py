"""States that clients continue, by an id or as the bytes of a file."""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

from linattn_core.errors import expected, rename_subject
from linattn_models.state import DecodingState


class StateStore:
    """The last states that requests asked for, for all threads; older ones are dropped.

    Args:
        most: states that are kept.
        most_bytes: of all of them; the last one is kept, whatever it has.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self._states: OrderedDict[str, DecodingState] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, state: DecodingState) -> str:
        """Keeps a state; returns its id, which nobody can guess."""
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._states[name] = state
            self._bytes += state.nbytes
            while len(self._states) > self._most or (
                self._bytes > self._most_bytes and len(self._states) > 1
            ):
                self._bytes -= self._states.popitem(last=False)[1].nbytes
        return name

    def get(self, name: str) -> DecodingState:
        """The state of an id.

        Raises:
            ValueError: an unknown id.
        """
        with self._lock:
            if name in self._states:
                self._states.move_to_end(name)
                return self._states[name]
        wanted = f"the id of one of the last {self._most} states"
        raise ValueError(expected("state", wanted, repr(name), "begin again"))


def write_bytes(state: DecodingState) -> bytes:
    """The bytes of the file that `DecodingState.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "state.safetensors")
        state.save(file)
        return file.read_bytes()


def read_bytes(content: bytes) -> DecodingState:
    """The state of such bytes; nothing is unpickled.

    Raises:
        ValueError: other bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "state.safetensors")
        file.write_bytes(content)
        try:
            return DecodingState.load(file)
        except ValueError as error:
            raise rename_subject(error, "state_bytes") from None
