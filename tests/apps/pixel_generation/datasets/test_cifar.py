"""CIFAR-10 in its three forms: all read alike, damage is one sentence, and no pickle runs."""

from __future__ import annotations

import io
import pickle
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
from tests.apps.pixel_generation.datasets.python2_pickle import dumps_like_python2

SOURCE = SOURCES["cifar10"]


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
    np.testing.assert_array_equal(cifar.read_binary(path, SOURCE, records=4), images)
    with pytest.raises(ValueError, match=r"expected 30,730,000 bytes .* got 12,292"):
        cifar.read_binary(path, SOURCE)
    path.write_bytes(records.tobytes()[1:] + b"\0")  # all shifted by one byte
    with pytest.raises(ValueError, match="expected labels 0 to 9, got"):
        cifar.read_binary(path, SOURCE, records=4)


def test_binary_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    for name in [*names, "test_batch.bin"]:
        with (folder / name).open("wb") as file:
            file.truncate(10_000 * cifar.RECORD_BYTES)  # black images, no disk used
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
def test_wrong_npz(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
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


GOOD = images_of(2)
WRONG_BATCHES: dict[str, tuple[Any, str]] = {
    "no dict": ([1, 2], "expected a dict with data and labels, got list"),
    "no data": ({b"labels": [1]}, "got NoneType"),
    "no labels": ({b"data": planes(GOOD)}, "expected a list of 2 labels, one an image"),
    "few labels": (batch_of(GOOD, labels=[1]), "expected a list of 2 labels, .* got 1"),
    "dtype": (batch_of(GOOD, data=planes(GOOD) / 255), r"got dtype b'f8', shape \(2, 3072\)"),
    "shape": (batch_of(GOOD, data=planes(GOOD)[:, :784]), r"shape \(2, 784\)"),
    "fortran": (batch_of(GOOD, data=np.asfortranarray(planes(GOOD))), "expected data of uint8"),
}


@pytest.mark.parametrize("kind", WRONG_BATCHES)
def test_wrong_python_batch(tmp_path: Path, kind: str) -> None:
    batch, sentence = WRONG_BATCHES[kind]
    path = tmp_path / "data_batch_1"
    path.write_bytes(dumps_like_python2(batch))
    with pytest.raises(ValueError, match=sentence) as caught:
        cifar.read_python(path, SOURCE)
    assert str(path) in str(caught.value) and SOURCE.page in str(caught.value)


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
        cifar.read_python(path, SOURCE)
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
        assert cifar.read_python(path, SOURCE).shape == GOOD.shape


@given(cut=st.integers(0, len(PYTHON_BATCH) - 1))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_truncated_batch_passes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(PYTHON_BATCH[:cut])
    with pytest.raises(ValueError, match="expected a CIFAR-10 python batch"):
        cifar.read_python(path, SOURCE)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py.*subset\.npz in .*kriz"):
        load("cifar10", tmp_path)


def test_real_subset(shared_data: Path) -> None:
    images = load("cifar10", shared_data)
    assert images.train.shape == (9_000, 32, 32, 3) and images.test.shape == (2_000, 32, 32, 3)
    train = np.concatenate([images.train, images.validation])
    assert (train / 255).mean(axis=(0, 1, 2)) == pytest.approx((0.4902, 0.4815, 0.4466), abs=1e-4)


def nested(depth: int) -> bytes:
    """A pickle of a dict whose key is a tuple in a tuple in a tuple, and so on."""
    return b"\x80\x02})" + b"\x85" * depth + b"K\x01s."


REPEATED = b"\x80\x02})" + b"2\x86" * 90 + b"K\x01s."  # each tuple holds the one before twice


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (nested(1_000_000), "more than 100 lists, dicts and tuples"),
        (nested(50), "a dict key of type tuple"),
        (REPEATED, "DUP, which no batch needs"),
        (b"\x80\x02" + b"]" * 1_000_000 + b".", "more than 100 lists, dicts and tuples"),
        (b"\x80\x02}q\x00(h\x00h\x00u.", "dict key of type dict"),
        (b"\x80\x02]q\x00h\x00a.", "expected a dict with data and labels, got list"),
    ],
    ids=["nested", "shallow key", "doubled", "many", "itself as a key", "itself inside"],
)
def test_a_pickle_of_depth_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        cifar.read_python(path, SOURCE)


def test_a_batch_of_any_size_is_not_read(tmp_path: Path) -> None:
    for name in ("data_batch_1", "data_batch_1.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**40)  # takes no space on disk
        read = cifar.read_binary if name.endswith("bin") else cifar.read_python
        with pytest.raises(ValueError, match="got 1,099,511,627,776"):
            read(tmp_path / name, SOURCE)


@pytest.mark.parametrize("protocol", [3, 4])
def test_batches_written_again_by_python_3(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch_of(GOOD), protocol))
    np.testing.assert_array_equal(cifar.read_python(path, SOURCE), GOOD)


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
