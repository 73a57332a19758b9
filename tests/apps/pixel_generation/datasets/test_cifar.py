"""CIFAR-10 in its two forms: both read alike, and damage is one sentence."""

from __future__ import annotations

import io
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

from pixels.datasets import Pixels, cifar, cifar_npz, load
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
    with pytest.raises(ValueError, match=r"expected 12,292 bytes \(4 records .*got 12,291"):
        cifar.read_batch(path, SOURCE)
    path.write_bytes(content[1:] + b"\0")  # all shifted by one byte
    with pytest.raises(ValueError, match="expected labels 0 to 9, got"):
        cifar.read_batch(path, SOURCE)


def test_a_batch_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_batches(folder, images_of(20), images_of(4))
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected data_batch_4\.bin in .*kriz"):
        load("cifar10", tmp_path)


def test_a_batch_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no space on disk
    with pytest.raises(ValueError, match="got 1,099,511,627,776"):
        cifar.read_batch(path, SOURCE)


def test_an_npz_is_read(tmp_path: Path) -> None:
    train, test = images_of(20), images_of(3, seed=1)
    np.savez(tmp_path / "cifar10-subset.npz", x_train=train, x_test=test)
    read = load("cifar10", tmp_path)
    np.testing.assert_array_equal(np.concatenate([read.train, read.validation]), train)
    np.testing.assert_array_equal(read.test, test)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x_train": images_of(2)}, r"expected an array x_test, got only \['x_train'\]"),
        ({"x_train": images_of(2), "x_test": images_of(2) / 255}, r"x_test of uint8 .* got .*<f8"),
        (
            {"x_train": planes(images_of(2)), "x_test": images_of(2)},
            r"x_train of uint8 .* got .*\(2, 3072\)",
        ),
        (
            {"x_train": images_of(2)[:0], "x_test": images_of(2)},
            "expected 1 to 60,000 images in x_train, got 0",
        ),
        ({"x_train": np.array([{}]), "x_test": images_of(2)}, r"x_train of uint8 .* got .*\|O"),
    ],
    ids=["missing", "dtype", "shape", "empty", "pickled"],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "cifar10-subset.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=sentence):
        cifar_npz.read_subset(path, SOURCE)


@given(cut=st.integers(0, 20_000))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_truncated_npz_passes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cifar10-subset.npz"
    np.savez(path, x_train=images_of(4), x_test=images_of(3))
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content) - 1)])
    with pytest.raises(ValueError, match="expected"):
        cifar_npz.read_subset(path, SOURCE)


def test_a_bare_array_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "cifar10-subset.npz"
    with path.open("wb") as file:
        np.save(file, images_of(2))
    with pytest.raises(ValueError, match=r"expected a whole \.npz archive, got a fault in it"):
        cifar_npz.read_subset(path, SOURCE)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin.*subset\.npz in .*kriz"):
        load("cifar10", tmp_path)


def test_the_real_subset_has_its_sizes_and_its_mean(shared_data: Callable[[str], Path]) -> None:
    images = load("cifar10", shared_data("cifar10"))
    assert images.train.shape == (9_000, 32, 32, 3) and images.test.shape == (2_000, 32, 32, 3)
    train = np.concatenate([images.train, images.validation])
    assert (train / 255).mean(axis=(0, 1, 2)) == pytest.approx((0.4902, 0.4815, 0.4466), abs=1e-4)


def npz_with_header(path: Path, header: str, body: bytes = b"") -> None:
    """An archive whose x_train has this header, in the form that numpy writes."""
    line = header.encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little")
        archive.writestr("x_train.npy", start + line + body)


def header_of(shape: str) -> str:
    return f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (header_of("(999999999, 32, 32, 3)"), "expected 1 to 60,000 images in x_train, got 999,"),
        (header_of("(60000, 32, 32, 3)"), "expected 184,320,000 bytes for the 60,000 images"),
        (header_of("(-1, 32, 32, 3)"), "x_train of uint8 and shape"),
        (header_of("(" + "9" * 50_000 + ", 32, 32, 3)"), "x_train of uint8 and shape"),
        ("(" * 50_000, "x_train of uint8 and shape"),
        ("\x1b[2J\x1b]0;owned\x07" * 1_000, r"got \\x1b\[2J\\x1b\]0;owned\\x07"),
        ("", "x_train of uint8 and shape .* got nothing"),
    ],
    ids=["many", "short", "negative", "digits", "parentheses", "escapes", "empty"],
)
def test_an_absurd_npz_header_is_one_short_sentence(
    tmp_path: Path, header: str, sentence: str
) -> None:
    path = tmp_path / "cifar10-subset.npz"
    npz_with_header(path, header)
    with pytest.raises(ValueError, match=sentence) as caught:
        cifar_npz.read_subset(path, SOURCE)
    assert len(str(caught.value)) < 600 and str(caught.value).isprintable()


def test_names_in_an_archive_are_cut_and_escaped(tmp_path: Path) -> None:
    path = tmp_path / "cifar10-subset.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("\x1b[2J" * 10_000, b"")
    with pytest.raises(ValueError, match="expected an array x_train") as caught:
        cifar_npz.read_subset(path, SOURCE)
    assert len(str(caught.value)) < 600 and str(caught.value).isprintable()


def test_a_zip_bomb_is_read_no_further_than_its_header_declares(tmp_path: Path) -> None:
    path = tmp_path / "cifar10-subset.npz"
    npz_with_header(path, header_of("(2, 32, 32, 3)"), bytes(2**26))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"expected 6,144 bytes .* of x_train, got more"):
        cifar_npz.read_subset(path, SOURCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


NPZ = io.BytesIO()
np.savez(NPZ, x_train=images_of(2), x_test=images_of(2))


@given(position=st.integers(0, len(NPZ.getvalue()) - 1), value=st.integers(0, 255))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_of_an_npz_gives_images_or_a_sentence(
    tmp_path: Path, position: int, value: int
) -> None:
    content = bytearray(NPZ.getvalue())
    content[-position - 1] = value  # counted from the end, where the archive's directory is
    path = tmp_path / "cifar10-subset.npz"
    path.write_bytes(content)
    with suppress(ValueError):
        train, test = cifar_npz.read_subset(path, SOURCE)
        assert train.shape == test.shape == (2, 32, 32, 3)
