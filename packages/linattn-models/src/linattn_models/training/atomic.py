"""Files and folders that are either there whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"


def write_file(path: Path, content: bytes) -> None:
    """Writes `content` and returns once the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Makes `content` the whole of the file at `path`; a failure leaves what was there before."""
    temporary = _temporary_sibling(path)
    try:
        write_file(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder that becomes `path` when the body ends; removed if it raises."""
    temporary = _temporary_sibling(path)
    try:
        temporary.mkdir()
        yield temporary
        _sync_folder(temporary)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Removes a folder so that at no moment half of it stands under its own name."""
    doomed = _temporary_sibling(path)
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files and folders in `folder` that a killed process left behind."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _temporary_sibling(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}")


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and a rename needs no flush
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
