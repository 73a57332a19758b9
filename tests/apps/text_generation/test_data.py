"""Texts are split by file, and pieces of them depend on the seed and the index alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from language.data import Windows, is_held_out, read_texts, spread_windows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for i in range(80):
        (folder / f"{i}.txt").write_text(f"file {i}.\n" * 9)
    (folder / ".hidden").write_text("secret")
    return folder


def test_each_file_is_in_one_part_whole(folder: Path, tmp_path: Path) -> None:
    texts = read_texts("files", folder, tmp_path / "run")
    parts = [bytes(part.tolist()).split(b"\0")[:-1] for part in texts]
    assert sorted(parts[0] + parts[1]) == sorted(x.read_bytes() for x in folder.glob("*.txt"))
    held_out = [x for x in folder.glob("*.txt") if is_held_out(Path(x.name))]
    assert sorted(parts[1]) == sorted(x.read_bytes() for x in held_out)


def test_the_standard_library_is_there(tmp_path: Path) -> None:
    texts = read_texts("stdlib", None, tmp_path)
    assert len(texts.training) > 10 * len(texts.held_out) > 1_000_000
    assert b"def namedtuple(" in bytes(torch.cat(texts).tolist())


def test_a_folder_that_would_not_be_read_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--dataset files"):
        read_texts("stdlib", folder, tmp_path)


def test_a_run_among_its_own_texts_is_refused(folder: Path) -> None:
    for out in (folder, folder / "runs" / "one", folder / "absent" / ".." / "run"):
        with pytest.raises(ValueError, match="--out"):
            read_texts("files", folder, out)


def test_pieces_depend_on_seed_and_index() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    windows = Windows(text, 3, 50, 10)
    all_of_them = windows.batch(torch.arange(50))["tokens"]
    assert torch.equal(windows.batch(torch.tensor([7, 2]))["tokens"], all_of_them[[7, 2]])
    assert bool((all_of_them.diff(dim=1) == 1).all())
    assert not torch.equal(Windows(text, 4, 50, 10).batch(torch.arange(50))["tokens"], all_of_them)


@pytest.mark.parametrize(("count", "length"), [(1, 5), (4, 50), (3, 500)])
def test_held_out_pieces_are_spread(count: int, length: int) -> None:
    text = torch.arange(200, dtype=torch.uint8)
    pieces = spread_windows(text, count, length)
    assert pieces.shape == (count, min(length, 200))
    assert pieces[0, 0] == 0 and (count == 1 or pieces[-1, -1] == 199)


@pytest.mark.parametrize("length", [1, 201])
def test_a_piece_must_fit(length: int) -> None:
    with pytest.raises(ValueError, match="length"):
        Windows(torch.zeros(200, dtype=torch.uint8), 0, 1, length)


def test_too_few_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    for folder in (tmp_path, tmp_path / "absent", None):
        with pytest.raises(ValueError, match="expected"):
            read_texts("files", folder, Path("run"))
