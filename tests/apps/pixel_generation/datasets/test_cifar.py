"""CIFAR-10 in its two forms: both read alike, and damage is one sentence."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pixels.datasets import Pixels, cifar, load
from pixels.datasets.sources import SOURCES

SOURCE = SOURCES["cifar10"]


def images_of(count: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def planes(images: Pixels) -> Pixels:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), 3072))


def write_batches(folder: Path, images: Pixels, test: Pixels) -> None:
    """Five batches and one, of len(test) images each."""
    folder.mkdir()
    for name, part in zip(cifar.BATCHES, [*np.split(images, 5), test], strict=True):
        labels = np.full((len(part), 1), 9, np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, planes(part)], axis=1).tobytes())


@pytest.fixture(autouse=True)
def _batches_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "RECORDS", 4)


@pytest.mark.parametrize("place", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "mine"])
def test_batches_are_read_wherever_they_stand(tmp_path: Path, place: str) -> None:
    train, test = images_of(20), images_of(4, seed=1)
    folder = tmp_path / place
    folder.parent.mkdir(exist_ok=True)
    write_batches(folder, train, test)
    read = load("cifar10", folder if place == "mine" else tmp_path)
    np.testing.assert_array_equal(np.concatenate([read.train, read.validation]), train)
    np.testing.assert_array_equal(read.test, test)
    assert (read.levels, read.channels, read.dimensions) == (256, 3, 3072)


def test_a_batch_that_is_damaged_is_refused(tmp_path: Path) -> None:
    write_batches(tmp_path / "batches", images_of(20), images_of(4))
    path = tmp_path / "batches" / "data_batch_1.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="12,291"):
        cifar.read_batch(path, SOURCE)
    path.write_bytes(content[1:] + b"\0")  # all shifted by one byte
    with pytest.raises(ValueError, match="labels"):
        cifar.read_batch(path, SOURCE)
    os.truncate(path, 2**40)  # takes no space on disk, and would take all memory
    with pytest.raises(ValueError, match="got 1,099,511,627,776"):
        cifar.read_batch(path, SOURCE)


def test_an_npz_is_read(tmp_path: Path) -> None:
    train, test = images_of(20), images_of(3, seed=1)
    np.savez(tmp_path / "cifar10-subset.npz", x_train=train, x_test=test)
    read = load("cifar10", tmp_path)
    np.testing.assert_array_equal(np.concatenate([read.train, read.validation]), train)
    np.testing.assert_array_equal(read.test, test)


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{"x_train": images_of(2), "x_test": images_of(2), **arrays})
    return path


@pytest.mark.parametrize(
    "wrong",
    [
        images_of(2) / 255,
        planes(images_of(2)),
        images_of(2)[:0],
        np.array([{}]),
        np.broadcast_to(np.zeros((), np.uint8), (60_004, 32, 32, 3)),
    ],
    ids=["dtype", "shape", "empty", "pickled", "large"],
)
def test_a_wrong_array_is_named(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "cifar10-subset.npz"
    write_npz(path, x_test=wrong)
    with pytest.raises(ValueError, match=r"subset\.npz"):
        cifar.read_npz(path, SOURCE)


NPZ = io.BytesIO()
np.savez_compressed(NPZ, x_train=images_of(2), x_test=images_of(2))
SIZE = len(NPZ.getvalue())


@given(position=st.integers(1, SIZE), value=st.integers(0, 255), cut=st.integers(0, SIZE))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_npz_gives_images_or_a_sentence(
    tmp_path: Path, position: int, value: int, cut: int
) -> None:
    content = bytearray(NPZ.getvalue())
    content[-position] = value  # counted from the end, where the archive's directory is
    path = tmp_path / "cifar10-subset.npz"
    path.write_bytes(content if cut % 2 else content[:cut])
    with suppress(ValueError):
        train, test = cifar.read_npz(path, SOURCE)
        assert train.shape == test.shape == (2, 32, 32, 3)


def test_a_zip_bomb_is_read_no_further_than_it_declares(tmp_path: Path) -> None:
    """Its header declares two images, and so does the archive of the bytes after it."""
    path = tmp_path / "cifar10-subset.npz"
    header = io.BytesIO()
    np.save(header, images_of(2))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", header.getvalue() + bytes(2**26))
    declared = (len(header.getvalue()) + 2**26).to_bytes(4, "little")
    content = path.read_bytes().replace(declared, len(header.getvalue()).to_bytes(4, "little"))
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match="CRC"):
        cifar.read_npz(path, SOURCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_packing_that_zipfile_does_not_bound_is_refused(tmp_path: Path, packing: int) -> None:
    path = tmp_path / "cifar10-subset.npz"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("x_train.npy", bytes(2**26))
    tracemalloc.start()
    with pytest.raises(ValueError, match="x_train is not packed"):
        cifar.read_npz(path, SOURCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_the_real_subset_has_its_sizes_and_its_mean(shared_data: Callable[[str], Path]) -> None:
    images = load("cifar10", shared_data("cifar10"))
    assert images.train.shape == (9_000, 32, 32, 3) and images.test.shape == (2_000, 32, 32, 3)
    train = np.concatenate([images.train, images.validation])
    assert (train / 255).mean(axis=(0, 1, 2)) == pytest.approx((0.4902, 0.4815, 0.4466), abs=1e-4)
