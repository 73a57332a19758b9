"""Where the audio of an utterance is: a file, a member of a tar, a place in an ark, a command."""

from __future__ import annotations

import functools
import io
import lzma
import subprocess
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from linattn_core.errors import expected, quote

Content = Path | io.BytesIO


class Source(Protocol):
    """Audio that has not been read yet."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def stamp(self) -> str:
        """Changes when the audio changes, as far as that is seen without reading it."""

    def content(self) -> Content:
        """The file, or its bytes.

        Raises:
            OSError, ValueError: it is not there.
        """


@dataclass(frozen=True)
class File:
    """A whole audio file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def stamp(self) -> str:
        return _file_stamp(self.path)

    def content(self) -> Content:
        require_file(self.path, "an audio file")
        return self.path


@dataclass(frozen=True)
class Member:
    """A file in a tar archive, packed or not; the archive's files are unpacked into memory."""

    archive: Path
    member: str

    @property
    def name(self) -> str:
        return f"{self.archive}, {self.member}"

    def stamp(self) -> str:
        return f"{_file_stamp(self.archive)} {self.member}"

    def content(self) -> Content:
        files = _members(self.archive)
        if self.member not in files:
            raise ValueError(expected(str(self.archive), f"a member {self.member}", "none"))
        return io.BytesIO(files[self.member])


@dataclass(frozen=True)
class Ark:
    """An audio file that begins at an offset of a Kaldi archive."""

    path: Path
    offset: int

    @property
    def name(self) -> str:
        return f"{self.path}:{self.offset}"

    def stamp(self) -> str:
        return f"{_file_stamp(self.path)} {self.offset}"

    def content(self) -> Content:
        require_file(self.path, "a Kaldi archive")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            head = file.read(8)
            if head[:4] != b"RIFF":
                raise ValueError(expected(self.name, "a WAV file (RIFF)", quote(head[:4])))
            return io.BytesIO(head + file.read(int.from_bytes(head[4:], "little")))


@dataclass(frozen=True)
class Command:
    """A shell command whose output is an audio file, as Kaldi lists end in a bar."""

    line: str

    @property
    def name(self) -> str:
        return f"the command {quote(self.line)}"

    def stamp(self) -> str:
        return self.line

    def content(self) -> Content:
        done = subprocess.run(self.line, shell=True, capture_output=True, check=False)
        if done.returncode or not done.stdout:
            got = f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()}"
            raise ValueError(expected(self.name, "an audio file on its output", quote(got)))
        return io.BytesIO(done.stdout)


def require_file(path: Path, wanted: str, advice: str = "") -> None:
    """Refuses a path that is no file.

    Raises:
        FileNotFoundError: in one sentence.
    """
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no file"
        raise FileNotFoundError(expected(str(path), wanted, got, advice))


def text_lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8.

    Raises:
        ValueError: it is in another encoding.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(expected(str(path), "text in UTF-8", error)) from None
    # Not splitlines: it also cuts at characters that words may have.
    return text.removesuffix("\n").split("\n") if text else []


def _file_stamp(path: Path) -> str:
    if not path.exists():
        return f"{path} absent"
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@functools.lru_cache(maxsize=1)
def _members(archive: Path) -> dict[str, bytes]:
    # Read in one pass: a packed archive has no other way to its last member.
    require_file(archive, "a tar archive")
    try:
        with tarfile.open(archive) as tar:
            files = ((item.name, tar.extractfile(item)) for item in tar if item.isfile())
            return {name.removeprefix("./"): file.read() for name, file in files if file}
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(expected(str(archive), "a whole tar archive", error)) from error
