"""CIFAR-10, as it is published or a part of it.

    cifar-10-batches-bin/   data_batch_1.bin .. 5, test_batch.bin  the published binary batches
    cifar10-subset.npz      x_train, x_test (n, 32, 32, 3) uint8   a subset as one numpy file

They are looked for in that order, and batches of which one is there must all be there. The
published python batches are pickles, which run what their author wrote; they are not read.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pixels.datasets.images import Images, Pixels, hold_out_the_end
from pixels.datasets.sources import SOURCES, Source, damage_error, missing

FOLDER, NPZ_NAME = "cifar-10-batches-bin", "cifar10-subset.npz"
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CLASSES = 10
RECORDS, RECORD_BYTES = 10_000, 1 + 3 * 32 * 32
ARRAYS = ("x_train", "x_test")
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile unpacks others without a limit
LARGEST_ARRAY = 60_000 * 3 * 32 * 32 + 10_000  # bytes of all images, and of a long header


def load(name: str, folders: Sequence[Path]) -> Images:
    """CIFAR-10 from the first folder that has it in some form."""
    source = SOURCES[name]
    for folder in folders:
        parts = _load_from(folder, source)
        if parts is not None:
            train, validation = hold_out_the_end(parts[0])
            return Images(name, train, validation, parts[1], levels=256)
    raise missing(f"{FOLDER} or {NPZ_NAME}", folders, source)


def read_batch(path: Path, source: Source) -> Pixels:
    """The images (RECORDS, 32, 32, 3) of one batch: a label byte and 3,072 pixel bytes each.

    A file has no magic number. Only its length and its labels, every 3,073rd byte, can show
    damage, and both are checked. A batch keeps an image as three planes (red,
    green, blue); here colors come last.
    """
    size, got = RECORDS * RECORD_BYTES, path.stat().st_size
    if got != size:
        whole = f"{size:,} bytes ({RECORDS:,} records of {RECORD_BYTES:,})"
        raise damage_error(path, whole, f"{got:,}", source)
    rows = np.fromfile(path, np.uint8).reshape(RECORDS, RECORD_BYTES)
    wrong = np.flatnonzero(rows[:, 0] >= CLASSES)
    if len(wrong):
        label = f"{rows[wrong[0], 0]} in record {wrong[0]}"
        raise damage_error(path, f"labels 0 to {CLASSES - 1}", label, source)
    return np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _load_from(folder: Path, source: Source) -> tuple[Pixels, Pixels] | None:
    for place in (folder / FOLDER, folder):
        if (place.name == FOLDER and place.is_dir()) or (place / BATCHES[0]).is_file():
            return _read_batches(place, source)
    path = folder / NPZ_NAME
    return read_npz(path, source) if path.is_file() else None


def _read_batches(folder: Path, source: Source) -> tuple[Pixels, Pixels]:
    for name in BATCHES:
        if not (folder / name).is_file():
            raise missing(name, [folder], source)
    *train, test = (read_batch(folder / name, source) for name in BATCHES)
    return np.concatenate(train), test


def read_npz(path: Path, source: Source) -> tuple[Pixels, Pixels]:
    """Train and test images of a subset, each (n, 32, 32, 3)."""
    try:
        with zipfile.ZipFile(path) as archive:
            train, test = (_read_array(archive, name) for name in ARRAYS)
    except Exception as error:  # zip and numpy raise a dozen kinds for damaged bytes
        wanted = "an .npz of x_train and x_test, uint8 of shape (n, 32, 32, 3)"
        raise damage_error(path, wanted, f"a fault in it ({error})", source) from error
    return train, test


def _read_array(archive: zipfile.ZipFile, name: str) -> Pixels:
    """An array of the archive, of which no more is decompressed than the archive declares."""
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > LARGEST_ARRAY:
        raise ValueError(f"{name} has {member.file_size:,} bytes")
    if member.compress_type not in PACKINGS:
        raise ValueError(f"{name} is not packed as numpy does it")
    with archive.open(member) as file:
        content = file.read(member.file_size)
    images: Pixels = np.load(io.BytesIO(content), allow_pickle=False)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) == 0:
        raise ValueError(f"{name} of {images.dtype} and shape {images.shape}")
    return images
