"""Files and folders that are either there whole or not there."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterator
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
    _flush(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder that becomes `path` when the body ends; removed if it raises."""
    temporary = _temporary_sibling(path)
    try:
        temporary.mkdir()
        yield temporary
        _flush(temporary)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _flush(path.parent)


@contextmanager
def replaced_folder(folder: Path, expected: Collection[str]) -> Iterator[Path]:
    """As `new_folder`, in the place of an older `folder` if that holds only files in `expected`.

    If the body raises, the older folder is as it was.

    Raises:
        ValueError: `folder` is a file, or holds other things, which would be lost.
        OSError: it cannot be written there.
    """
    folder = folder.resolve()  # what a symbolic link points to, not the link
    _refuse_to_destroy(folder, expected)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = _temporary_sibling(folder)
    try:
        with new_folder(folder) as fresh:
            yield fresh
            for file in fresh.iterdir():
                _flush(file)
            if folder.exists():
                folder.rename(aside)
    except BaseException:
        if aside.exists() and not folder.exists():
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


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
    # A name of its own each time: one that a killed process left must not stand in the way.
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{secrets.token_hex(4)}")


def _refuse_to_destroy(folder: Path, expected: Collection[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file where a folder was expected; choose another name.")
    present = folder.iterdir() if folder.exists() else iter(())
    others = sorted(path.name for path in present if path.name not in expected)
    if others:
        raise ValueError(
            f"{folder} holds {others[0]!r}, which saving there would remove; choose an empty or a "
            "new folder."
        )


def _flush(path: Path) -> None:
    """Returns once the disk has a file, or the names in a folder."""
    if path.is_dir() and os.name != "posix":
        return  # elsewhere a folder cannot be opened, and a rename needs no flush
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
