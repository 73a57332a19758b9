"""Replacing files: links are never followed, and what a killed process left is removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from linattn_models.basics.files import (
    leftovers,
    remove_folder,
    remove_leftovers,
    replace_file,
    replace_files,
    temporary_prefix,
)

NAMES = ("first", "second")


def replace(folder: Path) -> None:
    with replace_files(folder, *NAMES) as fresh:
        for name in NAMES:
            (fresh / name).write_text("new")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's elsewhere, with a subfolder."""
    folder = tmp_path / "precious"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text("precious")
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("suffix", ["", "1"])
@pytest.mark.parametrize("save", [replace, remove_leftovers], ids=["save", "resume"])
def test_a_link_in_the_place_of_a_temporary_folder_is_named_and_not_followed(
    place: Path, precious: Path, save: Callable[[Path], None], suffix: str
) -> None:
    link = place / f"{temporary_prefix(*NAMES)}{suffix}"
    link.symlink_to(precious, target_is_directory=True)
    with pytest.warns(UserWarning, match=f"{link.name}.*symbolic link"):
        save(place)
    assert (precious / "below" / "file").read_text() == "precious"
    assert link.is_symlink()
    assert leftovers(place, *NAMES) == []


def test_names_that_are_none_of_ours_are_left(place: Path) -> None:
    (place / ".tmp-notes").mkdir()
    (place / f"{temporary_prefix(*NAMES)}1").mkdir()
    remove_leftovers(place)
    assert [path.name for path in place.iterdir()] == [".tmp-notes"]


def test_a_link_to_a_folder_is_removed_without_it(place: Path, precious: Path) -> None:
    (place / "link").symlink_to(precious, target_is_directory=True)
    remove_folder(place / "link")
    assert [*place.iterdir()] == [] and (precious / "below" / "file").exists()


def test_a_link_inside_a_leftover_is_not_followed(place: Path, precious: Path) -> None:
    leftover = place / f"{temporary_prefix(*NAMES)}1"
    leftover.mkdir()
    (leftover / "link").symlink_to(precious, target_is_directory=True)
    replace(place)
    assert sorted(path.name for path in place.iterdir()) == sorted(NAMES)
    assert (precious / "below" / "file").exists()


def test_a_link_in_the_place_of_a_file_is_replaced(place: Path, precious: Path) -> None:
    target = precious / "below" / "file"
    (place / "file").symlink_to(target)
    replace_file(place / "file", b"new")
    assert target.read_text() == "precious"
    assert not (place / "file").is_symlink()


def test_what_a_killed_writer_did_not_rename_is_renamed_by_the_next(place: Path) -> None:
    pending = place / f"{temporary_prefix(*NAMES)}1"
    pending.mkdir()
    (pending / "second").write_text("pending")
    assert leftovers(place, *NAMES) == [pending]
    with pytest.raises(KeyError), replace_files(place, *NAMES):
        raise KeyError
    assert (place / "second").read_text() == "pending"
    assert [path.name for path in place.iterdir()] == ["second"]


def test_writers_of_one_file_wait_for_each_other(place: Path) -> None:
    together = threading.Barrier(4)
    (place / "count").write_text("0")

    def add(_: int) -> None:
        together.wait()
        with replace_files(place, "count") as fresh:
            (fresh / "count").write_text(str(int((place / "count").read_text()) + 1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(4)))
    assert (place / "count").read_text() == "4"
    assert [path.name for path in place.iterdir()] == ["count"]
