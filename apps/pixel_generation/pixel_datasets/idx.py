"""MNIST and Fashion-MNIST, from the IDX files that both are published as.

An IDX file of images is four big-endian 32-bit integers (magic 2051, number of images, rows,
columns), then one byte a pixel. It says how long it must be, so every truncation shows.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from .faults import damaged, folders_of, missing
from .images import Images, Pixels, hold_out_the_end

SOURCES = {
    "mnist": "the MNIST page (http://yann.lecun.com/exdb/mnist)",
    "fashion-mnist": "the Fashion-MNIST page (https://github.com/zalandoresearch/fashion-mnist)",
}
IMAGES_MAGIC = 2051
SIDE = 28
HEADER = struct.Struct(">4I")
GZIP_MAGIC = b"\x1f\x8b"


def load(name: str, data_dir: Path | None) -> Images:
    """The dataset `name` (mnist or fashion-mnist) from data_dir/name or data_dir itself."""
    source = SOURCES[name]
    folders = folders_of(name, data_dir, source)
    train = read_images(_find("train-images-idx3-ubyte", folders, data_dir, source), source)
    test = read_images(_find("t10k-images-idx3-ubyte", folders, data_dir, source), source)
    train, validation = hold_out_the_end(train)
    return Images(name, train, validation, test, levels=256)


def read_images(path: Path, source: str) -> Pixels:
    """The images (n, 28, 28) of one IDX file, compressed by gzip or not."""
    content = _contents(path, source)
    if len(content) < HEADER.size:
        raise damaged(path, f"a header of {HEADER.size} bytes", f"{len(content)} bytes", source)
    magic, count, rows, columns = HEADER.unpack_from(content)
    if magic != IMAGES_MAGIC:
        raise damaged(path, f"the magic number {IMAGES_MAGIC} of IDX images", str(magic), source)
    if (rows, columns) != (SIDE, SIDE):
        raise damaged(path, f"images of {SIDE}x{SIDE} pixels", f"{rows}x{columns}", source)
    if count == 0:
        raise damaged(path, "one image or more", "none", source)
    expected = HEADER.size + count * rows * columns
    if len(content) != expected:
        came = f"{len(content):,} bytes ({abs(len(content) - expected):,} too "
        came += "few)" if len(content) < expected else "many)"
        raise damaged(path, f"{expected:,} bytes for its {count:,} images", came, source)
    pixels = np.frombuffer(content, np.uint8, offset=HEADER.size)
    return pixels.reshape(count, rows, columns)


def _find(name: str, folders: list[Path], data_dir: Path | None, source: str) -> Path:
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise missing(f"{name} or {name}.gz", folders or [Path(str(data_dir))], source)


def _contents(path: Path, source: str) -> bytes:
    content = path.read_bytes()
    zipped = content[:2] == GZIP_MAGIC
    if path.suffix == ".gz" and not zipped:
        came = f"a start of {content[:2].hex(' ') or 'nothing'}"
        raise damaged(path, "gzip data (which starts with 1f 8b)", came, source)
    if not zipped:
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, "whole gzip data", f"a fault in it ({error})", source) from error
