"""CIFAR-10, in whichever of three forms the folder holds it.

    cifar-10-batches-py/    data_batch_1 .. 5, test_batch          the published python batches
    cifar-10-batches-bin/   data_batch_1.bin .. 5, test_batch.bin  the published binary batches
    cifar10-subset.npz      x_train, x_test (n, 32, 32, 3) uint8   a subset as one numpy file

They are looked for in that order, and a form of which one file is there must be whole. Both
published forms keep an image as three planes (red, green, blue); here colors come last.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import cifar_binary, cifar_npz, cifar_python
from .faults import folders_of, missing
from .images import Images, Pixels, hold_out_the_end

SOURCE = "the CIFAR-10 page (https://www.cs.toronto.edu/~kriz/cifar.html)"
NPZ_NAME = "cifar10-subset.npz"
Reader = Callable[[Path, str], Pixels]


def load(data_dir: Path | None) -> Images:
    """CIFAR-10 from data_dir/cifar10 or data_dir itself."""
    folders = folders_of("cifar10", data_dir, SOURCE)
    for folder in folders:
        found = _load_from(folder)
        if found is not None:
            train, validation = hold_out_the_end(found[0])
            return Images("cifar10", train, validation, found[1], levels=256)
    expected = f"cifar-10-batches-py, cifar-10-batches-bin or {NPZ_NAME}"
    raise missing(expected, folders or [Path(str(data_dir))], SOURCE)


def _load_from(folder: Path) -> tuple[Pixels, Pixels] | None:
    published: list[tuple[str, str, Reader]] = [
        ("cifar-10-batches-py", "", cifar_python.read_batch),
        ("cifar-10-batches-bin", ".bin", cifar_binary.read_batch),
    ]
    for name, suffix, read in published:
        for place in (folder / name, folder):
            named = place.name == name and place.is_dir()
            if named or (place / f"data_batch_1{suffix}").is_file():
                return _read_batches(place, suffix, read)
    path = folder / NPZ_NAME
    return cifar_npz.read(path, SOURCE) if path.is_file() else None


def _read_batches(folder: Path, suffix: str, read: Reader) -> tuple[Pixels, Pixels]:
    names = [f"data_batch_{number}{suffix}" for number in range(1, 6)] + [f"test_batch{suffix}"]
    for name in names:
        if not (folder / name).is_file():
            raise missing(name, [folder], SOURCE)
    *train, test = (read(folder / name, SOURCE) for name in names)
    return np.concatenate(train), test
