"""Atomic writes: a file or folder is written completely, or the old one stays."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from linattn_core.errors import expected

if sys.platform != "win32":
    import fcntl

TEMPORARY_PREFIX = ".tmp-"


def write_file(path: Path, content: bytes) -> None:
    """Writes `content` and returns after it is flushed to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path` atomically; if it fails, an older file stays as it was."""
    with replace_files(path.parent, path.name) as fresh:
        (fresh / path.name).write_bytes(content)


@contextmanager
def replace_files(folder: Path, *names: str) -> Iterator[Path]:
    """A temporary folder, whose files replace those in `folder`, in this order, after the body.

    A name may also be that of a folder, if there is none of this name yet.

    The body writes the files in the same order: so those that are left where the first is gone are
    whole, and the next call completes what was interrupted between two renames. It may leave out
    files but the first; their older ones stay. If the body raises, all older files stay as they
    were. Another process that replaces files of the same folder waits for this one.
    """
    with _lock(folder):
        for pending in leftovers(folder, *names):
            if _is_half_renamed(pending, names):
                _rename(pending, folder, names)
        for leftover in folder.glob(f"{temporary_prefix(*names)}*"):
            _remove_leftover(leftover)
        fresh = Path(tempfile.mkdtemp(prefix=temporary_prefix(*names), dir=folder))
        try:
            yield fresh
            for name in names:
                if (fresh / name).exists():
                    _flush(fresh / name)
            _rename(fresh, folder, names)
        finally:
            if not _is_half_renamed(fresh, names):
                shutil.rmtree(fresh, ignore_errors=True)


def _is_half_renamed(fresh: Path, names: Sequence[str]) -> bool:
    first, *rest = ((fresh / name).exists() for name in names)
    return not first and any(rest)


def _rename(fresh: Path, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (fresh / name).exists():
            (fresh / name).replace(folder / name)
    _flush(folder)


def leftovers(folder: Path, *names: str) -> list[Path]:
    """The folders in which `replace_files` has, or had when it was killed, files to rename."""
    return [path for path in folder.glob(f"{temporary_prefix(*names)}*") if _is_own(path)]


def temporary_prefix(*names: str) -> str:
    """How the name of the temporary folder of these names begins; the end is random."""
    digest = hashlib.sha256(os.fsencode("/".join(names))).hexdigest()
    return f"{TEMPORARY_PREFIX}{digest[:16]}-"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder, renamed to `path` when the body ends; removed if it raises."""
    temporary = _unused_sibling(path)
    try:
        temporary.mkdir()
        yield temporary
        _flush(temporary)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _flush(path.parent)


def remove_folder(path: Path) -> None:
    """Renames a folder and then removes it, so that no partial folder is left under its name."""
    renamed = _unused_sibling(path)
    path.rename(renamed)
    if renamed.is_symlink():
        renamed.unlink()
    else:
        shutil.rmtree(renamed)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files and folders in `folder` that a killed process left behind."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}{'[0-9a-f]' * 16}*"):
        _remove_leftover(leftover)


def _remove_leftover(path: Path) -> None:
    """Removes what this user wrote; others may have put a link there, which is not followed."""
    if not _is_own(path):
        got = "a symbolic link" if path.is_symlink() else "one of another user"
        wanted = "a temporary file or folder of this user"
        warnings.warn(expected(str(path), wanted, got, "remove it"), stacklevel=2)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True  # another process has removed it
    is_users = sys.platform == "win32" or status.st_uid == os.geteuid()
    return is_users and not stat.S_ISLNK(status.st_mode)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Locks a folder until the body ends, or the process does for any reason."""
    if sys.platform == "win32":  # which has no such locks
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unused_sibling(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")


def _flush(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name != "posix":
        return  # other systems cannot open a folder, and their renames need no flush
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
