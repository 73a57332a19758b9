"""Where audio is: a file, a member of an archive, an offset in one, or the output of a command."""

from __future__ import annotations

import functools
import io
import lzma
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from linattn_core.errors import expected, quote
from speech.lexicon import require_file

LARGEST = 1 << 30  # bytes of an archive, unpacked, and of a recording in a Kaldi archive
STREAMED = 0x7FFF_F000  # a WAV header with so many bytes or more was streamed: length unknown


@dataclass(frozen=True)
class File:
    """A whole audio file."""

    path: Path

    @property
    def name(self) -> str:
        """For errors."""
        return str(self.path)

    def stamp(self) -> str:
        """Changes with the audio, as far as that is seen without reading it."""
        if not self.path.exists():
            return f"{self.path} absent"
        status = self.path.stat()
        return f"{self.path} {status.st_size} {status.st_mtime_ns}"

    def open(self) -> BinaryIO:
        """The content, from its beginning."""
        require_file(self.path, "an audio file")
        return self.path.open("rb")


@dataclass(frozen=True)
class Member(File):
    """A file in a tar archive, as it is or packed as .xz, which is unpacked into memory."""

    member: str

    @property
    def name(self) -> str:
        return f"{self.path}, {self.member}"

    def stamp(self) -> str:
        return f"{super().stamp()} {self.member}"

    def open(self) -> BinaryIO:
        members = _read_members(self.path)
        if self.member not in members:
            raise ValueError(expected(str(self.path), f"a member {self.member}", "none"))
        return io.BytesIO(members[self.member])


@dataclass(frozen=True)
class Ark(File):
    """A WAV file that begins at an offset of a Kaldi archive."""

    offset: int

    @property
    def name(self) -> str:
        return f"{self.path}:{self.offset}"

    def stamp(self) -> str:
        return f"{super().stamp()} {self.offset}"

    def open(self) -> BinaryIO:
        require_file(self.path, "a Kaldi archive")
        room = self.path.stat().st_size - self.offset
        if room < 0:
            wanted = f"an offset within its {room + self.offset} bytes"
            raise ValueError(expected(str(self.path), wanted, self.offset))
        with self.path.open("rb") as file:
            file.seek(self.offset)
            head = file.read(8)
            if head[:4] != b"RIFF":
                raise ValueError(expected(self.name, "a WAV file (RIFF)", quote(head[:4])))
            size = int.from_bytes(head[4:], "little")
            if min(size, room) > LARGEST:
                raise ValueError(expected(self.name, f"at most {LARGEST} bytes", size))
            if not 0 < size < STREAMED:  # it would go on into the next recording
                wanted = "a WAV file that states its length"
                raise ValueError(expected(self.name, wanted, f"{size} bytes", "it was streamed"))
            return io.BytesIO(head + file.read(min(size, room)))


@dataclass(frozen=True)
class Command:
    """A shell command whose output is an audio file, as a line in Kaldi's lists with a final |."""

    line: str

    @property
    def name(self) -> str:
        return f"the command {quote(self.line)}"

    def stamp(self) -> str:
        return self.line

    def open(self) -> BinaryIO:
        done = subprocess.run(self.line, shell=True, capture_output=True, check=False)
        if done.returncode or not done.stdout:
            got = f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()}"
            raise ValueError(expected(self.name, "an audio file on its output", quote(got)))
        return io.BytesIO(done.stdout)


Source = File | Command


@functools.lru_cache(maxsize=1)
def _read_members(archive: Path) -> dict[str, memoryview]:
    """The files of an archive in one pass: a packed one has no other way to its last member.

    They are parts of its content, which has at most `LARGEST` bytes. A sparse file, which claims
    more than the archive holds, is left out.
    """
    require_file(archive, "a tar archive")
    try:
        with lzma.open(archive) if archive.suffix == ".xz" else archive.open("rb") as packed:
            content = packed.read(LARGEST + 1)
    except (EOFError, OSError, lzma.LZMAError) as error:
        raise ValueError(expected(str(archive), "a whole archive", error)) from error
    if len(content) > LARGEST:
        raise ValueError(expected(str(archive), f"at most {LARGEST} bytes, unpacked", "more"))
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            files = [item for item in tar if item.isfile() and not item.issparse()]
    except Exception as error:  # tarfile raises a dozen kinds for headers that are no headers
        got = quote(f"{type(error).__name__}: {error}")
        raise ValueError(expected(str(archive), "a whole tar archive", got)) from error
    view = memoryview(content)
    return {
        item.name.removeprefix("./"): view[item.offset_data : item.offset_data + item.size]
        for item in files
    }
