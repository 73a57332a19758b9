"""Atomic writes: a file or folder is written completely, or the old one stays."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from linattn_core.errors import expected, quote

TEMPORARY_PREFIX = ".tmp-"


def write_file(path: Path, content: bytes) -> None:
    """Writes `content` and returns after it is flushed to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path` atomically; if it fails, an older file stays as it was."""
    temporary = _temporary_sibling(path)
    try:
        write_file(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder, renamed to `path` when the body ends; removed if it raises."""
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
def replace_folder(folder: Path, replaceable: Collection[str]) -> Iterator[Path]:
    """As `new_folder`, but may replace an older `folder` that holds only files in `replaceable`.

    If the body raises, the older folder stays as it was.
    """
    folder = folder.resolve()  # what a symbolic link points to, not the link
    _refuse_to_destroy(folder, replaceable)
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
    """Renames a folder and then removes it, so that no partial folder is left under its name."""
    renamed = _temporary_sibling(path)
    path.rename(renamed)
    shutil.rmtree(renamed)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files and folders in `folder` that a killed process left behind."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _temporary_sibling(path: Path) -> Path:
    # A new name each time, so that files of a killed process do not conflict.
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{secrets.token_hex(4)}")


def _refuse_to_destroy(folder: Path, replaceable: Collection[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(expected(str(folder), "a folder", "a file", "choose another name"))
    present = folder.iterdir() if folder.exists() else iter(())
    others = sorted(path.name for path in present if path.name not in replaceable)
    if others:
        wanted = "a new folder, or one that saving may replace"
        advice = "choose a new or an empty folder"
        raise ValueError(expected(str(folder), wanted, f"one with {quote(others[0])}", advice))


def _flush(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name != "posix":
        return  # other systems cannot open a folder, and their renames need no flush
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
