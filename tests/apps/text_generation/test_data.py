"""Texts are split by file, and pieces of them depend on the seed and the index alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from language import files
from language.data import Windows, spread_windows
from language.files import Part, find_parts, is_held_out, read_texts
from language.tokens import Texts, encode_parts, prepare, read_tokens
from linattn_models import ByteTokenizer, CharacterTokenizer
from linattn_models.heads.tokenizer import decode_tokens, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for i in range(80):
        (folder / f"{i}.txt").write_text(f"file {i}.\n" * 9)
    (folder / ".hidden").write_text("secret")
    return folder


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    file = tmp_path / "poem.txt"
    file.write_text("".join(f"é{i}日 of {i % 7}\n" for i in range(400)), encoding="utf-8")
    return file


def text_of(tokens: Any) -> bytes:
    return bytes(np.asarray(tokens).tolist())


def test_each_of_many_files_is_in_one_part_whole(folder: Path, tmp_path: Path) -> None:
    texts = read_tokens([folder], None, tmp_path / "run")
    parts = [text_of(part).split(b"\0")[:-1] for part in (texts.training, texts.held_out)]
    assert sorted(parts[0] + parts[1]) == sorted(x.read_bytes() for x in folder.glob("*.txt"))
    held_out = [x for x in folder.glob("*.txt") if is_held_out(Path(x.name))]
    assert sorted(parts[1]) == sorted(x.read_bytes() for x in held_out)
    assert texts.counts.files == 80
    assert texts.counts.training_bytes == len(texts.training)


def test_only_ends_that_are_tokens_are_counted(folder: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    characters = {chr(i): i for i in range(1, 128)}
    model = tokenizers.models.BPE(vocab=characters, merges=[])
    name = write_file(tokenizers.Tokenizer(model), tmp_path / "without-end.json")
    texts = read_tokens([folder], name, tmp_path / "run")
    counts = texts.counts
    assert counts.training_bytes == len(texts.training)
    assert counts.held_out_bytes == len(texts.held_out)


def test_of_few_files_the_last_twentieth_of_each_is_held_out(poem: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "empty.txt").touch()
    (other / "one.txt").write_bytes(bytes(range(100)))
    corpus = find_parts([poem, other], tmp_path / "run")
    assert corpus.files == 3 and len(corpus.training) == len(corpus.held_out) == 2
    for file in (poem, other / "one.txt"):
        first, last = (
            next(x for x in parts if x.file == file) for parts in (corpus.training, corpus.held_out)
        )
        assert (first.start, first.end, last.end) == (0, last.start, len(file.read_bytes()))
        assert 0 < last.end - last.start <= last.end / 20 + 1
    for part in (*corpus.training, *corpus.held_out):
        if part.file == poem:
            assert "".join(read_texts(part))  # no character is divided


@given(text=st.text("aé日😀\n", min_size=1), block=st.integers(1, 9))
def test_texts_are_read_whole_in_any_blocks(
    text: str, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("text") / "text"
    file.write_bytes(text.encode())
    part = Part(file, 0, len(text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        assert "".join(read_texts(part)) == text
        tokens = np.concatenate([*encode_parts([part], ByteTokenizer())])
        assert text_of(tokens) == text.encode() + b"\0"
        file.write_bytes(text.encode() + b"a\xff")
        part = Part(file, 0, len(text.encode()) + 2)
        with pytest.raises(ValueError, match=rf"0xff at {len(text.encode()) + 1:,}; .*bytes"):
            list(read_texts(part))


def test_the_standard_library_is_there(tmp_path: Path) -> None:
    texts = read_tokens([], None, tmp_path)
    assert len(texts.training) > 10 * len(texts.held_out) > 1_000_000
    assert b"def namedtuple(" in text_of(texts.training) + text_of(texts.held_out)


def write_file(tokenizer: Any, file: Path) -> str:
    file.write_bytes(write_tokenizer(tokenizer))
    return str(file)


def pairs(poem: Path, folder: Path) -> str:
    """A file of a tokenizer of the library."""
    texts = read_tokens([poem], "bpe:280", folder / "run")
    return write_file(texts.tokenizer, folder / "pairs.json")


def content(texts: Texts) -> bytes:
    """The text that all tokens stand for."""
    both = (texts.training.tolist(), texts.held_out.tolist())
    return b"".join(decode_tokens(texts.tokenizer, x).encode() for x in both)


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe:300", "file"])
def test_tokens_are_the_text_and_prepared_ones_are_the_same(
    kind: str, poem: Path, tmp_path: Path
) -> None:
    if kind == "file" or kind.startswith("bpe"):
        pytest.importorskip("tokenizers")
    name = pairs(poem, tmp_path) if kind == "file" else kind
    texts = read_tokens([poem], name, tmp_path / "run")
    assert content(texts).replace(b"\0", b"") == poem.read_bytes()
    assert content(texts).count(b"\0") == 2
    prepared = prepare([poem], name, tmp_path / "deep" / "tokens")
    assert isinstance(prepared.training, np.memmap)
    again = read_tokens([tmp_path / "deep" / "tokens"], None, tmp_path / "run")
    for other in (prepared, again):
        assert other.counts == texts.counts
        assert np.array_equal(other.training, texts.training)
        assert np.array_equal(other.held_out, texts.held_out)
        assert write_tokenizer(other.tokenizer) == write_tokenizer(texts.tokenizer)


def test_a_run_among_its_own_texts_is_refused(folder: Path) -> None:
    for out in (folder, folder / "runs" / "one", folder / "absent" / ".." / "run"):
        with pytest.raises(ValueError, match="--out"):
            read_tokens([folder], None, out)


@pytest.mark.parametrize(
    ("data", "tokenizer", "advice"),
    [
        (["absent"], None, "file or a folder"),
        (["empty"], None, "an empty file"),
        (["nothing"], None, "a text"),
        (["binary"], "characters", "--tokenizer bytes"),
        (["poem.txt"], "words", "--tokenizer: expected bytes, characters"),
        (["poem.txt"], "bpe:256", "SIZE of 257 to"),
        (["poem.txt"], f"bpe:{10**12}", "SIZE of 257 to"),  # the library would end the process
        (["poem.txt"], "abc.json", "gives back the text of .*; give bytes"),
        (["poem.txt"], "binary", "binary"),
        (["tokens"], "bytes", "none with the prepared"),
        (["tokens", "poem.txt"], None, "one folder of tokens alone"),
        (["damaged"], None, "prepare it again"),
        (["swapped"], None, "prepare it again"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(
    data: Sequence[str], tokenizer: str | None, advice: str, poem: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "one").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    write_file(CharacterTokenizer("abc"), tmp_path / "abc.json")
    for name in ("tokens", "damaged"):
        prepare([poem], "bytes", tmp_path / name)
    (tmp_path / "damaged" / "held_out.bin").write_bytes(b"others")
    characters = prepare([poem], "characters", tmp_path / "swapped").tokenizer.characters
    write_file(CharacterTokenizer(characters[::-1]), tmp_path / "swapped" / "tokenizer.json")
    if tokenizer in ("binary", "abc.json"):
        tokenizer = str(tmp_path / tokenizer)
    with pytest.raises(ValueError, match=advice) as refusal:
        read_tokens([tmp_path / name for name in data], tokenizer, tmp_path / "out" / "run")
    assert "\n" not in str(refusal.value)


def test_tokens_are_prepared_whole_or_not_at_all(poem: Path, tmp_path: Path) -> None:
    poem.write_bytes(poem.read_bytes() + b"\xff")
    with pytest.raises(ValueError, match="UTF-8"):
        prepare([poem], "characters", tmp_path / "tokens")
    assert list(tmp_path.iterdir()) == [poem]
    with pytest.raises(ValueError, match="a new folder"):
        prepare([poem], "bytes", tmp_path)


def test_pieces_depend_on_seed_and_index() -> None:
    text = np.arange(200, dtype=np.uint8)
    windows = Windows(text, 3, 50, 10)
    all_of_them = windows.batch(torch.arange(50))["tokens"]
    assert torch.equal(windows.batch(torch.tensor([7, 2]))["tokens"], all_of_them[[7, 2]])
    assert bool((all_of_them.diff(dim=1) == 1).all())
    assert not torch.equal(Windows(text, 4, 50, 10).batch(torch.arange(50))["tokens"], all_of_them)


@pytest.mark.parametrize(("count", "length"), [(1, 5), (4, 50), (3, 500)])
def test_held_out_pieces_are_spread(count: int, length: int) -> None:
    pieces = spread_windows(np.arange(200, dtype=np.uint8), count, length)
    assert pieces.shape == (count, min(length, 200))
    assert pieces[0, 0] == 0 and (count == 1 or pieces[-1, -1] == 199)


@pytest.mark.parametrize("length", [1, 201])
def test_a_piece_must_fit(length: int) -> None:
    with pytest.raises(ValueError, match="length"):
        Windows(np.zeros(200, dtype=np.uint8), 0, 1, length)
