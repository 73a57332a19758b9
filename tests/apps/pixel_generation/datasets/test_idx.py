"""IDX files: what is read is what was written, and every kind of damage is one sentence."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pixels.datasets import Pixels, idx, load
from pixels.datasets.sources import SOURCES

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
SOURCE = SOURCES["mnist"]


def idx_bytes(images: Pixels, magic: int = 2051) -> bytes:
    return struct.pack(">4I", magic, *images.shape) + images.tobytes()


def images_of(count: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("subfolder", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_reads_published_names(tmp_path: Path, name: str, subfolder: bool, zipped: bool) -> None:
    folder = tmp_path / name if subfolder else tmp_path
    folder.mkdir(exist_ok=True)
    train, test = images_of(20), images_of(3, seed=1)
    for stem, images in ((TRAIN, train), (TEST, test)):
        content = idx_bytes(images)
        path = folder / (f"{stem}.gz" if zipped else stem)
        path.write_bytes(gzip.compress(content) if zipped else content)
    read = load(name, tmp_path)  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.concatenate([read.train, read.validation]), train)
    np.testing.assert_array_equal(read.test, test)
    assert len(read.validation) == 2
    assert (read.name, read.levels, read.channels, read.dimensions) == (name, 256, 1, 784)


WHOLE = idx_bytes(images_of(3))
PACKED = gzip.compress(WHOLE)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (WHOLE[:15], "header"),
        (WHOLE[:-7], "2,345"),
        (WHOLE + b"x", "more"),
        (idx_bytes(images_of(3), magic=2049), "2049"),
        (WHOLE[:4] + b"\xff" + WHOLE[5:], "4,278,190,083"),
        (WHOLE[:8] + struct.pack(">2I", 14, 56) + WHOLE[16:], "14x56"),
        (WHOLE[:4] + struct.pack(">I", 0) + WHOLE[8:16], "images"),
        (PACKED[:-20], "gzip"),
        (PACKED[:200] + bytes(50), "gzip"),
        (PACKED + b"tail", "gzip"),
    ],
)
def test_damage_names_the_file_and_the_fault(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / TRAIN
    path.write_bytes(content)
    with pytest.raises(ValueError, match=named) as caught:
        idx.read_images(path, SOURCE)
    assert str(path) in str(caught.value) and SOURCE.page in str(caught.value)


def test_a_gzip_bomb_is_read_no_further_than_it_declares(tmp_path: Path) -> None:
    """A header of 3 images, and a stream that would become a gigabyte."""
    path = tmp_path / f"{TRAIN}.gz"
    path.write_bytes(gzip.compress(WHOLE[:16]) + 64 * gzip.compress(bytes(2**24)))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more"):
        idx.read_images(path, SOURCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21


def test_missing_folder_and_files(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load("mnist", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=f"{cache}/mnist"):
        load("mnist")
    (tmp_path / TRAIN).write_bytes(WHOLE)
    with pytest.raises(FileNotFoundError, match=TEST):
        load("fashion-mnist", tmp_path)


def test_real_mnist_has_its_sizes_and_its_mean(shared_data: Callable[[str], Path]) -> None:
    images = load("mnist", shared_data("mnist"))
    assert images.train.shape == (55_000, 28, 28)
    assert images.validation.shape == (5_000, 28, 28)
    assert images.test.shape == (10_000, 28, 28)
    assert images.train.mean() / 255 == pytest.approx(0.1307, abs=5e-4)  # the published mean
