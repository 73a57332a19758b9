"""States in a folder, or an object store, that several servers share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from fsspec.core import url_to_fs

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import at_least
from linattn_models.serving.states import StateStore, make_id, start

# Seconds in which a store has to be ready.
_PATIENCE = 60
# Seconds between two looks for what is too old or too much; other servers add to the folder.
_PAUSE = 60
_SUFFIX = ".safetensors"
# The nanosecond in which a state was kept, and what nobody can guess. Ids are in order of age.
_ID = re.compile(r"[0-9a-f]{16}-[A-Za-z0-9_-]{22}", re.ASCII)


class SharedStates(StateStore):
    """States in a folder that several servers share, each in a file of its own.

    Files with other names in the folder are left alone. Whoever can read the folder can continue
    all conversations, and read what is left in their states.

    Args:
        url: a folder that all servers see, or a URL for the library `fsspec`, such as
            "s3://bucket/states" (with the package s3fs).
        seconds: after which a state is removed.
        most_bytes: of all files; the oldest are removed. Each server looks once in a minute, and
            after it has written as much; between, the folder may be larger.

    Raises:
        ValueError: numbers out of range, or a URL of an unknown kind.
        OSError: a folder or store that cannot be written.
    """

    def __init__(self, url: str, seconds: int = 86_400, most_bytes: int = 1 << 34) -> None:
        self._seconds = at_least("seconds", seconds, 1)
        self._most_bytes = at_least("most_bytes", most_bytes, 1)
        self._lock = threading.Lock()
        self._bytes = 0  # after the last look, and added since
        self._next_look = 0.0
        try:
            # Listings that are kept would miss the files of others.
            self._files, self._folder = url_to_fs(url, use_listings_cache=False)
            start(self._make_folder).result(_PATIENCE)
        except ImportError as error:
            wanted = "a store whose library is installed"
            raise ValueError(expected("state_store", wanted, quote(url), str(error))) from None
        except ValueError as error:
            wanted = "a folder, or the URL of a store"
            raise ValueError(expected("state_store", wanted, quote(url), str(error))) from None
        except Exception as error:  # noqa: BLE001 - file systems raise any class
            wanted = "a folder or store that can be written"
            raise OSError(expected(url, wanted, quote(error))) from None

    def _make_folder(self) -> None:
        self._files.makedirs(self._folder, exist_ok=True)
        self._files.rm_file(self._path(self.put(b"a test")))

    def put(self, content: bytes) -> str:
        name = f"{time.time_ns():016x}-{make_id()}"
        path = self._path(name)
        try:
            # Under its own name: before this returns, nobody knows it.
            self._files.pipe_file(path, content)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(path)
            raise
        self._bytes += len(content)  # not exact where two threads add; the next look is
        return name

    def tidy(self) -> None:
        is_due = self._bytes > self._most_bytes or time.monotonic() > self._next_look
        if is_due and self._lock.acquire(blocking=False):
            try:
                self._remove_old()
            finally:
                self._lock.release()

    def get(self, name: str, most: int) -> bytes | None:
        if not _ID.fullmatch(name) or name < self._oldest():
            return None
        try:
            about = self._files.info(self._path(name))
            if about["type"] != "file" or about.get("islink") or about["size"] > most:
                return None
            content: bytes = self._files.cat_file(self._path(name), end=about["size"])
        except FileNotFoundError:
            return None
        return content

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"

    def _oldest(self) -> str:
        """Ids below it are too old."""
        return f"{max(0, time.time_ns() - self._seconds * 10**9):016x}"

    def _remove_old(self) -> None:
        """Removes the files that are too old, and the oldest until there is room again.

        Some more room than that, so that not every call has to look.
        """
        self._next_look = time.monotonic() + _PAUSE
        sizes = dict(sorted(self._list()))
        total, oldest = sum(sizes.values()), self._oldest()
        is_full = total > self._most_bytes
        newest = next(reversed(sizes), None)  # whose id was just given
        for name, size in sizes.items():
            has_room = not is_full or total <= self._most_bytes * 7 // 8
            if name >= oldest and (has_room or name == newest):
                break
            with suppress(FileNotFoundError):  # another server looks, too
                self._files.rm_file(self._path(name))
            total -= size
        self._bytes = total

    def _list(self) -> Iterator[tuple[str, int]]:
        """The ids and the bytes of all states."""
        try:
            listing = self._files.ls(self._folder, detail=True)
        except FileNotFoundError:  # object stores have no empty folders
            return
        for about in listing:
            name = about["name"].rpartition("/")[2]
            is_own = name.endswith(_SUFFIX) and _ID.fullmatch(name.removesuffix(_SUFFIX))
            if is_own and about["type"] == "file":
                yield name.removesuffix(_SUFFIX), about["size"]
