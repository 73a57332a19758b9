"""Texts as bytes: the source of Python's standard library, or the files of a folder."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_lab.runs import data_digest

VOCABULARY = 256
HELD_OUT_SHARE = 20
"""One file of so many is held out."""
END = b"\0"
"""Stands after each file."""

Dataset = Literal["stdlib", "files"]


class Texts(NamedTuple):
    """Bytes of the files to learn from, and of those that are held out: (length,) uint8 each."""

    training: Tensor
    held_out: Tensor

    def digest(self) -> str:
        """A hash of both."""
        return data_digest(self.training.numpy(), self.held_out.numpy())


def read_texts(dataset: Dataset, folder: Path | None, out: Path) -> Texts:
    """Returns the texts, split by file: a file's name alone decides where it goes.

    Args:
        dataset: "stdlib", Python's own library without its tests, the same for each Python of one
            version and platform; "files", all files of `folder`.
        folder: of the files; None for "stdlib".
        out: where the run writes; refused inside `folder`, whose files would change with the run.
    """
    if dataset == "stdlib" and folder is not None:
        got, advice = str(folder), "give --dataset files"
        raise ValueError(expected("--data-dir", "none with --dataset stdlib", got, advice))
    root = Path(sysconfig.get_path("stdlib")) if dataset == "stdlib" else folder
    if root is None:
        raise ValueError(expected("--data-dir", "a folder of texts with --dataset files", "none"))
    if folder is not None and out.resolve().is_relative_to(folder.resolve()):
        advice = "choose another: the run would learn its own files"
        raise ValueError(expected("--out", "a folder outside of --data-dir", out, advice))
    files = sorted(library_files(root) if dataset == "stdlib" else text_files(root))
    held_out = [file for file in files if is_held_out(file.relative_to(root))]
    training = sorted(set(files) - set(held_out))
    if not training or not held_out:
        wanted = f"{2 * HELD_OUT_SHARE} files or more: about one in {HELD_OUT_SHARE} is held out"
        raise ValueError(expected(str(root), wanted, f"{len(files)}"))
    return Texts(join_files(training), join_files(held_out))


def join_files(files: Sequence[Path]) -> Tensor:
    """The bytes of all files, each with its end: (length,) uint8."""
    joined = bytearray().join(file.read_bytes() + END for file in files)
    return torch.frombuffer(joined, dtype=torch.uint8)


def library_files(root: Path) -> Iterator[Path]:
    """The modules of the standard library, without tests and what is installed beside it."""
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    for file in root.rglob("*.py"):
        if not left_out & set(file.relative_to(root).parts):
            yield file


def text_files(root: Path) -> Iterator[Path]:
    """All files below a folder, but hidden ones."""
    if not root.is_dir():
        raise ValueError(expected("--data-dir", "a folder", str(root)))
    for file in root.rglob("*"):
        parts = file.relative_to(root).parts
        if file.is_file() and not any(part.startswith(".") for part in parts):
            yield file


def is_held_out(name: Path) -> bool:
    """Whether a file is held out, by a hash of its name."""
    digest = hashlib.sha256(name.as_posix().encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class Windows:
    """Pieces of a text at random places: the piece at index i depends on the seed and i alone.

    Args:
        text: (length,) uint8.
        seed: decides the places.
        examples: how many pieces there are.
        length: bytes of each.
    """

    text: Tensor
    seed: int
    examples: int
    length: int

    def __post_init__(self) -> None:
        if not 2 <= self.length <= len(self.text):
            wanted = f"2 to {len(self.text):,}, the bytes of the text"
            raise ValueError(expected("--length", wanted, self.length))

    def __len__(self) -> int:
        return self.examples

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """The pieces at `indices` (B,): "tokens", (B, length) int64."""
        return {"tokens": torch.stack([self._piece(index) for index in indices.tolist()])}

    def _piece(self, index: int) -> Tensor:
        draw = np.random.default_rng((self.seed, index))
        start = int(draw.integers(len(self.text) - self.length + 1))
        return self.text[start : start + self.length].long()


def spread_windows(text: Tensor, count: int, length: int) -> Tensor:
    """Returns pieces at equal distances from the first byte to the last: (count, length)."""
    length = min(length, len(text))
    starts = torch.linspace(0, len(text) - length, count).long()
    return torch.stack([text[start : start + length] for start in starts.tolist()]).long()
