"""CIFAR-10, in whichever of three forms the folder holds it.

    cifar-10-batches-py/    data_batch_1 .. 5, test_batch          the published python batches
    cifar-10-batches-bin/   data_batch_1.bin .. 5, test_batch.bin  the published binary batches
    cifar10-subset.npz      x_train, x_test (n, 32, 32, 3) uint8   a subset as one numpy file

They are looked for in that order, and a form of which one file is there must be whole. Both
published forms keep an image as three planes (red, green, blue); here colors come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pixels.datasets import cifar_pickle
from pixels.datasets.cifar_npz import read_subset
from pixels.datasets.images import Images, Pixels, hold_out_the_end
from pixels.datasets.sources import SOURCES, Source, damaged, missing

NPZ_NAME = "cifar10-subset.npz"
CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
Reader = Callable[[Path, Source], Pixels]


def load(name: str, folders: Sequence[Path]) -> Images:
    """CIFAR-10 from the first folder that has it in some form."""
    for folder in folders:
        parts = _load_from(folder, SOURCES[name])
        if parts is not None:
            train, validation = hold_out_the_end(parts[0])
            return Images(name, train, validation, parts[1], levels=256)
    wanted = f"cifar-10-batches-py, cifar-10-batches-bin or {NPZ_NAME}"
    raise missing(wanted, folders, SOURCES[name])


def read_binary(path: Path, source: Source, records: int = 10_000) -> Pixels:
    """The images (records, 32, 32, 3) of one binary batch: a label byte and 3,072 pixel bytes each.

    A record holds no mark of its own. The file's length and its labels, every 3,073rd byte, are
    all that can show damage, and both are checked.
    """
    size, got = records * RECORD_BYTES, path.stat().st_size
    if got != size:
        whole = f"{size:,} bytes ({records:,} records of {RECORD_BYTES:,})"
        raise damaged(path, whole, f"{got:,}", source)
    rows = np.fromfile(path, np.uint8).reshape(records, RECORD_BYTES)
    wrong = np.flatnonzero(rows[:, 0] >= CLASSES)
    if len(wrong):
        label = f"{rows[wrong[0], 0]} in record {wrong[0]}"
        raise damaged(path, f"labels 0 to {CLASSES - 1}", label, source)
    return _colors_last(rows[:, 1:])


def read_python(path: Path, source: Source) -> Pixels:
    """The images (n, 32, 32, 3) of one python batch. Nothing in the file is executed."""
    return _colors_last(cifar_pickle.read_rows(path, source))


def _colors_last(rows: Pixels) -> Pixels:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _load_from(folder: Path, source: Source) -> tuple[Pixels, Pixels] | None:
    published: list[tuple[str, str, Reader]] = [
        ("cifar-10-batches-py", "", read_python),
        ("cifar-10-batches-bin", ".bin", read_binary),
    ]
    for name, suffix, read in published:
        for place in (folder / name, folder):
            named = place.name == name and place.is_dir()
            if named or (place / f"data_batch_1{suffix}").is_file():
                return _read_batches(place, suffix, read, source)
    path = folder / NPZ_NAME
    return read_subset(path, source) if path.is_file() else None


def _read_batches(folder: Path, suffix: str, read: Reader, source: Source) -> tuple[Pixels, Pixels]:
    names = [f"data_batch_{number}{suffix}" for number in range(1, 6)] + [f"test_batch{suffix}"]
    for name in names:
        if not (folder / name).is_file():
            raise missing(name, [folder], source)
    *train, test = (read(folder / name, source) for name in names)
    return np.concatenate(train), test
