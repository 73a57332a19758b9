"""The files of a corpus, in two parts: to learn from, and held out."""

from __future__ import annotations

import codecs
import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from linattn_core.errors import expected

HELD_OUT_SHARE = 20
"""One file of so many is held out; of fewer than 40 files, the last twentieth of each."""
DESCRIPTION = "tokens.json"
"""The file by which a folder of prepared tokens is known."""
BLOCK = 1 << 20
"""Bytes of a file that are in memory at once."""


class Part(NamedTuple):
    """The bytes of a file from a place to another."""

    file: Path
    start: int
    end: int


class Corpus(NamedTuple):
    """The parts of files to learn from, and those that are held out."""

    training: list[Part]
    held_out: list[Part]
    files: int


def find_parts(data: Sequence[Path], out: Path) -> Corpus:
    """Returns the parts of all files of `data`, or of Python's standard library.

    Args:
        data: files and folders; of folders, all files but hidden ones. None at all: Python's own
            library without its tests, the same for each Python of one version and platform.
        out: where the run writes; refused inside of a folder of `data`, whose files would change.
    """
    sources = _library_files() if not data else {}
    for path in data:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            advice = "choose another: the run would learn its own files"
            raise ValueError(expected("--out", "a folder outside of --data", out, advice))
        sources |= _named_files(path)
    files = sorted(sources)
    held_out = [file for file in files if is_held_out(sources[file])]
    if len(files) >= 2 * HELD_OUT_SHARE and 0 < len(held_out) < len(files):
        whole = {file: Part(file, 0, file.stat().st_size) for file in files}
        rest = sorted(set(files) - set(held_out))
        return Corpus([whole[x] for x in rest], [whole[x] for x in held_out], len(files))
    cuts = [_cut(file) for file in files if file.stat().st_size]
    if not cuts:
        names = ", ".join(map(str, data))
        raise ValueError(expected("--data", "files with a text", f"none in {names}"))
    return Corpus([first for first, _ in cuts], [last for _, last in cuts], len(files))


def read_blocks(part: Part) -> Iterator[bytes]:
    """The bytes of a part, a block after the other."""
    with part.file.open("rb") as file:
        file.seek(part.start)
        while block := file.read(min(BLOCK, part.end - file.tell())):
            yield block


def read_texts(part: Part) -> Iterator[str]:
    """The text of a part, a block after the other; refuses bytes that are not UTF-8."""
    decoder, done = codecs.getincrementaldecoder("utf-8")(), part.start
    for block in (*read_blocks(part), b""):
        waiting = len(decoder.getstate()[0])
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            got = f"byte {error.object[error.start]:#04x} at {done - waiting + error.start:,}"
            advice = "give --tokenizer bytes, which takes any bytes, or convert the file"
            raise ValueError(expected(str(part.file), "text in UTF-8", got, advice)) from None
        done += len(block)


def is_held_out(name: Path) -> bool:
    """Whether a file is held out, by a hash of its name."""
    digest = hashlib.sha256(name.as_posix().encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def _library_files() -> dict[Path, Path]:
    """The modules of the standard library, without tests and what is installed beside it."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    names = {file: file.relative_to(root) for file in root.rglob("*.py")}
    return {file: name for file, name in names.items() if not left_out & set(name.parts)}


def _named_files(path: Path) -> dict[Path, Path]:
    """A file, or all below a folder but hidden ones, with their names in it."""
    if path.is_file():
        if not path.stat().st_size:
            raise ValueError(expected(str(path), "a text", "an empty file"))
        return {path: Path(path.name)}
    if not path.is_dir():
        raise ValueError(expected("--data", "a file or a folder of texts", f"no {path}"))
    if (path / DESCRIPTION).is_file():
        wanted, advice = "texts, or one folder of tokens alone", "name the texts"
        raise ValueError(expected("--data", wanted, f"tokens in {path}", advice))
    names = {file: file.relative_to(path) for file in path.rglob("*") if file.is_file()}
    return {x: name for x, name in names.items() if not any(y[0] == "." for y in name.parts)}


def _cut(file: Path) -> tuple[Part, Part]:
    """A file without its last twentieth, and that; no character of UTF-8 is divided."""
    size = file.stat().st_size
    place = size * (HELD_OUT_SHARE - 1) // HELD_OUT_SHARE
    with file.open("rb") as opened:
        opened.seek(place)
        following = opened.read(3)
    place += next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), 0)
    return Part(file, 0, place), Part(file, place, size)
