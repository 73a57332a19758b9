"""MNIST and Fashion-MNIST, from the IDX files that both are published as.

An IDX file of images is four big-endian 32-bit integers (magic 2051, number of images, rows,
columns), then one byte a pixel. It says how long it must be, so every truncation shows, and no
more than that is read of it, however much the compressed file would become.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pixels.datasets.images import Images, Pixels, hold_out_the_end
from pixels.datasets.sources import SOURCES, Source, damage_error, missing

IMAGES_MAGIC = 2051
SIDE = 28
MOST_IMAGES = 60_000  # in the larger of the published files
HEADER = struct.Struct(">4I")
GZIP_MAGIC = b"\x1f\x8b"


def load(name: str, folders: Sequence[Path]) -> Images:
    """The dataset `name` (mnist or fashion-mnist) from the first folder that has its files."""
    source = SOURCES[name]
    train = read_images(_find("train-images-idx3-ubyte", folders, source), source)
    test = read_images(_find("t10k-images-idx3-ubyte", folders, source), source)
    train, validation = hold_out_the_end(train)
    return Images(name, train, validation, test, levels=256)


def read_images(path: Path, source: Source) -> Pixels:
    """The images (n, 28, 28) of one IDX file, compressed by gzip or not."""
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if compressed else path.open("rb") as content:
            return _read(content, path, source)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damage_error(path, "whole gzip data", f"a fault in it ({error})", source) from error


def _find(name: str, folders: Sequence[Path], source: Source) -> Path:
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise missing(f"{name} or {name}.gz", folders, source)


def _read(file: gzip.GzipFile | io.BufferedReader, path: Path, source: Source) -> Pixels:
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise damage_error(path, f"a header of {HEADER.size} bytes", f"{len(header)} bytes", source)
    magic, count, rows, columns = HEADER.unpack(header)
    if magic != IMAGES_MAGIC:
        raise damage_error(path, f"the magic number {IMAGES_MAGIC} of IDX images", magic, source)
    if (rows, columns) != (SIDE, SIDE):
        raise damage_error(path, f"images of {SIDE}x{SIDE} pixels", f"{rows}x{columns}", source)
    if not 1 <= count <= MOST_IMAGES:
        raise damage_error(path, f"1 to {MOST_IMAGES:,} images", f"{count:,}", source)
    size = count * rows * columns
    content = file.read(size + 1)  # one more, to see whether the file ends there
    if len(content) != size:
        got = "more" if len(content) > size else f"{len(content):,}"
        raise damage_error(path, f"{size:,} bytes for its {count:,} images", got, source)
    return np.frombuffer(content, np.uint8).reshape(count, rows, columns)
