"""CIFAR-10 in its three forms: all read alike, damage is one sentence, and no pickle runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pixel_datasets import Pixels, cifar_binary, cifar_npz, cifar_python, load
from python2_pickle import dumps_like_python2

SOURCE = "the page of the data"


def images_of(count: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def planes(images: Pixels) -> Pixels:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), 3072))


def batch_of(images: Pixels, **changes: Any) -> dict[bytes, Any]:
    batch = {b"batch_label": b"one", b"labels": [1] * len(images), b"data": planes(images)}
    return batch | {key.encode(): value for key, value in changes.items()}


def write_python(folder: Path, images: Pixels, test: Pixels) -> None:
    folder.mkdir()
    for number, part in enumerate(np.split(images, 5), start=1):
        (folder / f"data_batch_{number}").write_bytes(dumps_like_python2(batch_of(part)))
    (folder / "test_batch").write_bytes(dumps_like_python2(batch_of(test)))


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py", "mine"])
def test_python_batches(tmp_path: Path, place: str) -> None:
    train, test = images_of(20), images_of(3, seed=1)
    folder = tmp_path / place
    folder.parent.mkdir(exist_ok=True)
    write_python(folder, train, test)
    read = load("cifar10", folder if place == "mine" else tmp_path)
    np.testing.assert_array_equal(np.concatenate([read.train, read.validation]), train)
    np.testing.assert_array_equal(read.test, test)
    assert (read.levels, read.channels, read.dimensions) == (256, 3, 3072)


def test_binary_batch(tmp_path: Path) -> None:
    images = images_of(4)
    records = np.concatenate([np.full((4, 1), 9, np.uint8), planes(images)], axis=1)
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(records.tobytes())
    np.testing.assert_array_equal(cifar_binary.read_batch(path, SOURCE, records=4), images)
    with pytest.raises(ValueError, match=r"expected 30,730,000 bytes .* found 12,292"):
        cifar_binary.read_batch(path, SOURCE)
    path.write_bytes(records.tobytes()[1:] + b"\0")  # all shifted by one byte
    with pytest.raises(ValueError, match="expected labels 0 to 9, found"):
        cifar_binary.read_batch(path, SOURCE, records=4)


def test_binary_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    for name in [*names, "test_batch.bin"]:
        with (folder / name).open("wb") as file:
            file.truncate(10_000 * cifar_binary.RECORD_BYTES)  # black images, no disk used
    (folder / "data_batch_4.bin").rename(folder / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"expected data_batch_4\.bin in .*kriz"):
        load("cifar10", tmp_path)
    (folder / "elsewhere").rename(folder / "data_batch_4.bin")
    read = load("cifar10", tmp_path)
    assert len(read.train) == 45_000 and len(read.validation) == 5_000 and len(read.test) == 10_000


def test_npz(tmp_path: Path) -> None:
    train, test = images_of(20), images_of(3, seed=1)
    np.savez(tmp_path / "cifar10-subset.npz", x_train=train, x_test=test)
    read = load("cifar10", tmp_path)
    np.testing.assert_array_equal(np.concatenate([read.train, read.validation]), train)
    np.testing.assert_array_equal(read.test, test)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x_train": images_of(2)}, r"expected an array x_test, found only \['x_train'\]"),
        ({"x_train": images_of(2), "x_test": images_of(2) / 255}, r"x_test of uint8 .* float64"),
        ({"x_train": planes(images_of(2)), "x_test": images_of(2)}, r"found uint8 \(2, 3072\)"),
        ({"x_train": images_of(2)[:0], "x_test": images_of(2)}, r"found uint8 \(0, 32, 32, 3\)"),
        ({"x_train": np.array([{}]), "x_test": images_of(2)}, "expected a whole .npz archive"),
    ],
    ids=["missing", "dtype", "shape", "empty", "pickled"],
)
def test_wrong_npz(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "cifar10-subset.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=sentence):
        cifar_npz.read(path, SOURCE)


@given(cut=st.integers(0, 20_000))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_truncated_npz_passes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cifar10-subset.npz"
    np.savez(path, x_train=images_of(4), x_test=images_of(3))
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content) - 1)])
    with pytest.raises(ValueError, match="expected"):
        cifar_npz.read(path, SOURCE)


def test_a_bare_array_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "cifar10-subset.npz"
    with path.open("wb") as file:
        np.save(file, images_of(2))
    with pytest.raises(ValueError, match=r"expected a whole \.npz archive, .*a single \.npy array"):
        cifar_npz.read(path, SOURCE)


GOOD = images_of(2)
WRONG_BATCHES: dict[str, tuple[Any, str]] = {
    "no dict": ([1, 2], "expected a dict with data and labels, found list"),
    "no data": ({b"labels": [1]}, "found NoneType"),
    "no labels": ({b"data": planes(GOOD)}, "expected a list of 2 labels, one an image"),
    "few labels": (batch_of(GOOD, labels=[1]), "expected a list of 2 labels, .* found 1"),
    "dtype": (batch_of(GOOD, data=planes(GOOD) / 255), r"found dtype b'f8', shape \(2, 3072\)"),
    "shape": (batch_of(GOOD, data=planes(GOOD)[:, :784]), r"shape \(2, 784\)"),
    "fortran": (batch_of(GOOD, data=np.asfortranarray(planes(GOOD))), "expected data of uint8"),
}


@pytest.mark.parametrize("kind", WRONG_BATCHES)
def test_wrong_python_batch(tmp_path: Path, kind: str) -> None:
    batch, sentence = WRONG_BATCHES[kind]
    path = tmp_path / "data_batch_1"
    path.write_bytes(dumps_like_python2(batch))
    with pytest.raises(ValueError, match=sentence) as caught:
        cifar_python.read_batch(path, SOURCE)
    assert str(path) in str(caught.value) and SOURCE in str(caught.value)


class Malice:
    """An object whose pickle, when loaded, calls what it likes."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch_of(GOOD, x=Malice(Path.touch, trace)), protocol))
    with pytest.raises(ValueError, match="which no batch needs"):
        cifar_python.read_batch(path, SOURCE)
    assert not trace.exists()
    pickle.loads(path.read_bytes())  # the same bytes do run where they are trusted
    assert trace.exists()


PYTHON_BATCH = dumps_like_python2(batch_of(GOOD))


@given(position=st.integers(0, len(PYTHON_BATCH) - 1), value=st.integers(0, 255))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_gives_images_or_a_sentence(
    tmp_path: Path, position: int, value: int
) -> None:
    """Any byte of a pixel may change unseen; no other change may raise anything else."""
    content = bytearray(PYTHON_BATCH)
    content[position] = value
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    # Whatever is neither images nor the sentence fails the test by being raised.
    with suppress(ValueError):
        assert cifar_python.read_batch(path, SOURCE).shape == GOOD.shape


@given(cut=st.integers(0, len(PYTHON_BATCH) - 1))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_truncated_batch_passes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(PYTHON_BATCH[:cut])
    with pytest.raises(ValueError, match="expected a CIFAR-10 python batch"):
        cifar_python.read_batch(path, SOURCE)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py.*subset\.npz in .*kriz"):
        load("cifar10", tmp_path)


def test_real_subset(shared_data: Path) -> None:
    images = load("cifar10", shared_data)
    assert images.train.shape == (9_000, 32, 32, 3) and images.test.shape == (2_000, 32, 32, 3)
    train = np.concatenate([images.train, images.validation])
    assert (train / 255).mean(axis=(0, 1, 2)) == pytest.approx((0.4902, 0.4815, 0.4466), abs=1e-4)
