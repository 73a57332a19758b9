"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_folder(folder: Path, expected: Collection[str]) -> Iterator[Path]:
    """A temporary sibling to write into, which becomes `folder` when the block ends well.

    An older folder of that name is replaced if it holds nothing but files named in `expected`. If
    the block raises, the temporary folder is removed and `folder` is as it was.

    Raises:
        ValueError: `folder` is a file, or holds other things, which would be lost.
        OSError: it cannot be written there.
    """
    _refuse_to_destroy(folder, expected)
    folder.parent.mkdir(parents=True, exist_ok=True)
    name = tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent)
    scratch = Path(name)
    try:
        fresh = scratch / "new"
        fresh.mkdir()
        yield fresh
        for file in fresh.iterdir():
            _flush_to_disk(file)
        _swap(fresh, folder, aside=scratch / "old")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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


def _flush_to_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _swap(fresh: Path, folder: Path, aside: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    folder.rename(aside)
    try:
        fresh.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
