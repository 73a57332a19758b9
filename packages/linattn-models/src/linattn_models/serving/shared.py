"""States in a folder, or an object store, that several servers share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from fsspec.core import url_to_fs

from linattn_core.errors import expected
from linattn_models.basics.validation import at_least
from linattn_models.serving.states import StateStore, make_id, unknown_id

# Seconds between two looks for what is too old or too much; other servers add to the folder.
_PAUSE = 60
_SUFFIX = ".safetensors"
# The second in which a state was kept, and what nobody can guess. Ids are in order of age.
_ID = re.compile(r"[0-9a-f]{10}-[A-Za-z0-9_-]{22}", re.ASCII)


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
        OSError: a folder that cannot be made.
    """

    def __init__(self, url: str, seconds: int = 86_400, most_bytes: int = 1 << 34) -> None:
        self._seconds = at_least("seconds", seconds, 1)
        self._most_bytes = at_least("most_bytes", most_bytes, 1)
        try:
            # Listings that are kept would miss the files of others.
            self._files, self._folder = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ValueError(expected("state_store", "a URL of a known kind", error)) from None
        self._files.makedirs(self._folder, exist_ok=True)
        self._lock = threading.Lock()
        self._bytes = 0  # after the last look, and added since
        self._next_look = 0.0

    def put(self, content: bytes) -> str:
        self._bytes += len(content)  # not exact where two threads add; the next look is
        if (self._bytes > self._most_bytes or time.monotonic() > self._next_look) and (
            self._lock.acquire(blocking=False)
        ):
            try:
                self._remove_old(len(content))
            finally:
                self._lock.release()
        name = f"{int(time.time()):010x}-{make_id()}"
        path = self._path(name)
        try:
            # Under its own name: before this returns, nobody knows it.
            self._files.pipe_file(path, content)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(path)
            raise
        return name

    def get(self, name: str, most: int) -> bytes:
        if not _ID.fullmatch(name) or name < self._oldest():
            raise unknown_id(name)
        try:
            about = self._files.info(self._path(name))
            if about["type"] != "file" or about.get("islink"):
                raise unknown_id(name)
            if about["size"] > most:
                wanted = f"at most {most:,} bytes"
                raise ValueError(expected("state", wanted, f"{about['size']:,}", "begin again"))
            content: bytes = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            raise unknown_id(name) from None
        return content

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"

    def _oldest(self) -> str:
        """Ids below it are too old."""
        return f"{max(0, int(time.time()) - self._seconds):010x}"

    def _remove_old(self, new: int) -> None:
        """Removes the files that are too old, and the oldest until there is room for `new` bytes.

        Some more room than that, so that not every call has to look.
        """
        self._next_look = time.monotonic() + _PAUSE
        sizes = dict(sorted(self._list()))
        total, oldest = sum(sizes.values()) + new, self._oldest()
        is_full = total > self._most_bytes
        for name, size in sizes.items():
            if name >= oldest and not (is_full and total > self._most_bytes * 7 // 8):
                break
            with suppress(FileNotFoundError):  # another server looks, too
                self._files.rm_file(self._path(name))
            total -= size
        self._bytes = total

    def _list(self) -> Iterator[tuple[str, int]]:
        """The ids and the bytes of all states."""
        for about in self._files.ls(self._folder, detail=True):
            name = about["name"].rpartition("/")[2]
            is_own = name.endswith(_SUFFIX) and _ID.fullmatch(name.removesuffix(_SUFFIX))
            if is_own and about["type"] == "file":
                yield name.removesuffix(_SUFFIX), about["size"]
