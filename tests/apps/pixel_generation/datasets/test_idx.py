"""IDX files: what is read is what was written, and every kind of damage is one sentence."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


Damage = Callable[[bytes], bytes]
WHOLE = idx_bytes(images_of(3))
DAMAGES: dict[str, tuple[Damage, str]] = {
    "empty": (lambda b: b"", "expected a header of 16 bytes, got 0 bytes"),
    "header cut": (lambda b: b[:15], "expected a header of 16 bytes, got 15 bytes"),
    "truncated": (lambda b: b[:-7], "expected 2,352 bytes for its 3 images, got 2,345"),
    "trailing": (lambda b: b + b"x", "expected 2,352 bytes for its 3 images, got more"),
    "labels": (lambda b: struct.pack(">I", 2049) + b[4:], "magic number 2051 .* got 2049"),
    "count flipped": (
        lambda b: b[:4] + b"\xff" + b[5:],
        "expected 1 to 60,000 images, got 4,278,190,083",
    ),
    "shape": (lambda b: b[:8] + struct.pack(">2I", 14, 56) + b[16:], "28x28 pixels, got 14x56"),
    "none": (lambda b: b[:4] + struct.pack(">I", 0) + b[8:16], "1 to 60,000 images, got 0"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_one_sentence(tmp_path: Path, kind: str) -> None:
    damage, sentence = DAMAGES[kind]
    path = tmp_path / TRAIN
    path.write_bytes(damage(WHOLE))
    with pytest.raises(ValueError, match=sentence) as caught:
        idx.read_images(path, SOURCE)
    assert str(path) in str(caught.value) and SOURCE.page in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (WHOLE, "expected gzip data .*got a start of 00 00"),
        (gzip.compress(WHOLE)[:-20], "expected whole gzip data"),
        (gzip.compress(WHOLE)[:200] + b"\0" * 50, "expected whole gzip data"),
        (gzip.compress(WHOLE) + b"tail", "expected whole gzip data"),
    ],
    ids=["plain", "truncated", "corrupt", "trailing"],
)
def test_damaged_gzip_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / f"{TRAIN}.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        idx.read_images(path, SOURCE)


def test_a_gzip_bomb_is_read_no_further_than_it_declares(tmp_path: Path) -> None:
    """A header of 3 images, and a stream that would become a gigabyte."""
    path = tmp_path / f"{TRAIN}.gz"
    path.write_bytes(gzip.compress(WHOLE[:16]) + 64 * gzip.compress(bytes(2**24)))
    with pytest.raises(ValueError, match="expected 2,352 bytes for its 3 images, got more"):
        idx.read_images(path, SOURCE)
    tracemalloc.start()
    with suppress(ValueError):
        idx.read_images(path, SOURCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21


@given(cut=st.integers(0, len(WHOLE) - 1))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_truncation_passes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / TRAIN
    path.write_bytes(WHOLE[:cut])
    with pytest.raises(ValueError, match="expected"):
        idx.read_images(path, SOURCE)


def test_missing_folder_and_files(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--data-dir: expected a folder"):
        load("mnist", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=rf"in {cache}/mnist, .*--download.*yann\.lecun"):
        load("mnist")
    (tmp_path / TRAIN).write_bytes(WHOLE)
    with pytest.raises(FileNotFoundError, match=f"expected {TEST} or {TEST}.gz .*zalandoresearch"):
        load("fashion-mnist", tmp_path)


def test_real_mnist_has_its_sizes_and_its_mean(shared_data: Callable[[str], Path]) -> None:
    images = load("mnist", shared_data("mnist"))
    assert images.train.shape == (55_000, 28, 28)
    assert images.validation.shape == (5_000, 28, 28)
    assert images.test.shape == (10_000, 28, 28)
    assert images.train.mean() / 255 == pytest.approx(0.1307, abs=5e-4)  # the published mean
