"""Atomic writes: a file or folder is written completely, or the old one stays."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

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
    were. Another process that replaces the same files waits for this one.
    """
    fresh = fresh_folder(folder, *names)
    with _locked_folder(fresh, names):
        if _is_half_renamed(fresh, names):
            _rename(fresh, folder, names)
        for leftover in fresh.iterdir():
            _remove(leftover)
        yield fresh
        for name in names:
            if (fresh / name).exists():
                _flush(fresh / name)
        _rename(fresh, folder, names)


def _is_half_renamed(fresh: Path, names: Sequence[str]) -> bool:
    first, *rest = ((fresh / name).exists() for name in names)
    return not first and any(rest)


def _rename(fresh: Path, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (fresh / name).exists():
            (fresh / name).replace(folder / name)
    _flush(folder)


def fresh_folder(folder: Path, *names: str) -> Path:
    """The folder in which `replace_files` keeps new files until they replace the older ones."""
    digest = hashlib.sha256(os.fsencode("/".join(names))).hexdigest()
    return folder / f"{TEMPORARY_PREFIX}{digest[:16]}"


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
    shutil.rmtree(renamed)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files and folders in `folder` that a killed process left behind."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        _remove(leftover)


@contextmanager
def _locked_folder(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Makes a folder for the body alone; removes it afterwards, unless it is half renamed."""
    descriptor = _make_and_lock(folder)
    try:
        yield
    finally:
        if not _is_half_renamed(folder, names):
            shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _make_and_lock(folder: Path) -> int | None:
    """The descriptor that holds the lock until it is closed, or the process ends for any reason."""
    if sys.platform == "win32":  # which has no such locks
        folder.mkdir(exist_ok=True)
        return None
    while True:
        # Not `mkdir(exist_ok=True)`, which looks again whether the folder is there.
        with suppress(FileExistsError):
            folder.mkdir()
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another process has removed it meanwhile
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_open_as(descriptor, folder):
            return descriptor
        os.close(descriptor)


def _is_open_as(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


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
