"""CIFAR-10, or a part of it, as one .npz file with the arrays x_train and x_test.

Such a file is a zip archive of .npy files: a header in Python's words, then the bytes. The header
is compared with the only one that fits, so nothing of it is evaluated, and no more is decompressed
than it declares.
"""

from __future__ import annotations

import lzma
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from pixels.datasets.images import Pixels
from pixels.datasets.sources import Source, damaged

IMAGE_BYTES = 3 * 32 * 32
MOST_IMAGES = 60_000
START = 10  # bytes of magic, version and the header's length
LONGEST_HEADER = START + 2**16
HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '\|u1', 'fortran_order': False, "
    rb"'shape': \((\d{1,9}), 32, 32, 3\), \} *\n",
    re.DOTALL,
)
# What zipfile raises for bytes that are not a zip archive's, or that it cannot decompress.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    ValueError,
    OverflowError,
    RuntimeError,
    EOFError,
    OSError,
)


def read_subset(path: Path, source: Source) -> tuple[Pixels, Pixels]:
    """Train and test images, each (n, 32, 32, 3) uint8."""
    return _images(path, "x_train", source), _images(path, "x_test", source)


def _images(path: Path, name: str, source: Source) -> Pixels:
    content = _member(path, name, source)
    header = HEADER.match(content)
    if header is None:
        line = content[START:].split(b"\n", 1)[0].decode("latin-1").strip()
        raise damaged(path, f"{name} of uint8 and shape (n, 32, 32, 3)", line or "nothing", source)
    count, size = int(header[1]), len(content) - header.end()
    if not 1 <= count <= MOST_IMAGES:
        raise damaged(path, f"1 to {MOST_IMAGES:,} images in {name}", f"{count:,}", source)
    if size != count * IMAGE_BYTES:
        wanted = f"{count * IMAGE_BYTES:,} bytes for the {count:,} images of {name}"
        raise damaged(path, wanted, "more" if size > count * IMAGE_BYTES else f"{size:,}", source)
    return np.frombuffer(content, np.uint8, offset=header.end()).reshape(count, 32, 32, 3)


def _member(path: Path, name: str, source: Source) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if f"{name}.npy" in names:
                with archive.open(f"{name}.npy") as file:
                    return _read(file)
    except UNREADABLE as error:
        raise damaged(path, "a whole .npz archive", f"a fault in it ({error})", source) from error
    arrays = [member.removesuffix(".npy") for member in names]
    raise damaged(path, f"an array {name}", f"only {arrays}", source)


def _read(file: IO[bytes]) -> bytes:
    """The header, and of the rest as much as it declares, and one byte more."""
    content = file.read(LONGEST_HEADER)
    header = HEADER.match(content)
    count = 0 if header is None else min(int(header[1]), MOST_IMAGES)
    return content + file.read(max(0, count * IMAGE_BYTES + LONGEST_HEADER - len(content) + 1))
