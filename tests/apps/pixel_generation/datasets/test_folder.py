"""Pictures of a folder: what is read, in which order, and one sentence for each that is refused."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pixels.datasets import FolderSettings, Images, folder, load


def noise(mode: str = "RGB", width: int = 12, height: int = 12, seed: int = 0) -> Image.Image:
    """A picture of random pixels in a mode."""
    shape = (height, width, 3)
    colors = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(colors).convert(mode)


def fill(place: Path, count: int = 20, **options: Any) -> Path:
    """A folder of so many PNGs, each different."""
    place.mkdir(exist_ok=True)
    for number in range(count):
        noise(**options, seed=number).save(place / f"{number:03}.png")
    return place


def all_of(images: Images) -> list[bytes]:
    """Every image, in the order of the parts."""
    parts = np.concatenate([images.train, images.validation, images.test])
    return [image.tobytes() for image in parts]


def read(path: Path, **options: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture of a file in 12 pixels each way, unless the options say another size."""
    return folder.read_picture(path, FolderSettings(**{"size": 12, **options}))


@pytest.mark.parametrize("color", [False, True])
def test_pictures_of_the_size_are_kept_byte_for_byte(tmp_path: Path, color: bool) -> None:
    fill(tmp_path, mode="RGB" if color else "L")
    images = load("folder", tmp_path, settings=FolderSettings(size=12, color=color))
    saved = [np.asarray(Image.open(path)).tobytes() for path in tmp_path.iterdir()]
    assert sorted(all_of(images)) == sorted(saved)
    assert (len(images.train), len(images.validation), len(images.test)) == (17, 1, 2)
    assert (images.levels, images.channels) == (256, 3 if color else 1)
    assert images.train.dtype == np.uint8


def test_names_and_seed_decide_the_parts(tmp_path: Path) -> None:
    """Neither the order in which files were made nor the hash of Python's strings."""
    fill(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for path in sorted((tmp_path / "a").iterdir(), reverse=True):
        (tmp_path / "b" / path.name).write_bytes(path.read_bytes())
    first = load("folder", tmp_path / "a", settings=FolderSettings(size=12))
    assert all_of(load("folder", tmp_path / "b", settings=FolderSettings(size=12))) == all_of(first)
    names = [path.name for path in folder.find_pictures(tmp_path / "a", 0)]
    assert names[-2:] == ["012.png", "009.png"]  # the test pictures, on every machine
    other = load("folder", tmp_path / "a", settings=FolderSettings(size=12, split_seed=1))
    assert all_of(other) != all_of(first) and sorted(all_of(other)) == sorted(all_of(first))


def test_a_crop_is_the_middle_and_a_pad_is_all(tmp_path: Path) -> None:
    stripes = np.zeros((12, 36), np.uint8)
    stripes[:, :12], stripes[:, 12:24], stripes[:, 24:] = 50, 100, 150
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    assert (read(tmp_path / "stripes.png") == 100).all()
    padded = read(tmp_path / "stripes.png", fit="pad")
    assert padded.shape == (12, 12) and not padded[:4].any() and not padded[8:].any()
    assert padded[4:8, 1].tolist() == [50] * 4 and padded[4:8, 10].tolist() == [150] * 4


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
@pytest.mark.parametrize("color", [False, True])
def test_gray_palette_and_color_are_read_as_asked(tmp_path: Path, mode: str, color: bool) -> None:
    picture = noise(mode)
    picture.save(tmp_path / "x.png")
    wanted = np.asarray(picture.convert("RGB" if color else "L"))
    np.testing.assert_array_equal(read(tmp_path / "x.png", color=color), wanted)


def test_a_photo_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    upright = Image.new("L", (16, 16))
    upright.paste(255, (0, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # it was taken sideways
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "x.jpg", exif=exif, quality=95)
    photo = read(tmp_path / "x.jpg", size=16)
    assert photo[:7].min() > 240 and photo[9:].max() < 15


def save(picture: Image.Image, **options: Any) -> bytes:
    """The bytes of a picture's file."""
    file = io.BytesIO()
    picture.save(file, **{"format": "png", **options})
    return file.getvalue()


def bomb(side: int) -> bytes:
    """A PNG of some bytes that declares side x side pixels."""
    header = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(2**16))), (b"IEND", b""))
    content = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(content)


WHOLE = save(noise())
TRANSPARENT = noise()
TRANSPARENT.putalpha(128)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "a whole PNG or JPEG"),
        (b"no picture", "a whole PNG or JPEG"),
        (WHOLE[:-60], "a whole PNG or JPEG"),
        (save(noise(width=99, height=99), format="jpeg")[:-200], "a whole PNG or JPEG"),
        (save(noise(), format="gif"), "a whole PNG or JPEG"),
        (save(noise(), format="tiff"), "a whole PNG or JPEG"),
        (bomb(9_000), "9,000x9,000 pixels"),
        (bomb(60_000), "a whole PNG or JPEG"),
        (save(Image.new("I;16", (12, 12))), "8 bits, got 'I;16'"),
        (save(noise("CMYK"), format="jpeg"), "8 bits, got 'CMYK'"),
        (save(TRANSPARENT), "transparent pixels"),
        (save(TRANSPARENT.convert("LA")), "transparent pixels"),
        (save(noise("P"), transparency=int(np.asarray(noise("P"))[0, 0])), "transparent pixels"),
        (save(noise("L", width=30, height=11)), "got 30x11"),
    ],
)
def test_a_picture_that_is_refused_is_named(tmp_path: Path, content: bytes, named: str) -> None:
    path = fill(tmp_path) / "010.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=named) as caught:
        load("folder", tmp_path, settings=FolderSettings(size=12))
    assert str(path) in str(caught.value) and len(str(caught.value).splitlines()) == 1


@given(position=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255), cut=st.booleans())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_picture_is_read_or_named(
    tmp_path: Path, position: int, value: int, cut: bool
) -> None:
    content = bytearray(WHOLE)
    content[position] = value
    path = tmp_path / "x.png"
    path.write_bytes(content[:position] if cut else content)
    with suppress(ValueError):
        assert read(path).shape == (12, 12)


def test_hidden_files_are_left_out_and_others_are_told(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".DS_Store").write_bytes(b"x")
    (tmp_path / ".thumbnails").mkdir()
    assert len(all_of(load("folder", tmp_path, settings=FolderSettings(size=12)))) == 20
    (tmp_path / "labels.csv").touch()
    (tmp_path / "a.webp").touch()
    with pytest.warns(UserWarning, match=r"2 others, which are left out, such as 'a\.webp'"):
        assert len(all_of(load("folder", tmp_path, settings=FolderSettings(size=12)))) == 20


@pytest.mark.skipif(os.name == "nt", reason="makes links and pipes")
def test_links_pipes_and_folders_are_refused(tmp_path: Path) -> None:
    place = fill(tmp_path / "pictures")
    odd = place / "odd.png"
    makers: dict[str, Callable[[], object]] = {
        "a link": lambda: odd.symlink_to(place / "000.png"),
        "a folder": odd.mkdir,
        "a device": lambda: os.mkfifo(odd),
    }
    for got, make in makers.items():
        make()
        with pytest.raises(ValueError, match=f"got {got}") as caught:
            load("folder", place, settings=FolderSettings(size=12))
        assert str(odd) in str(caught.value)
        odd.rmdir() if got == "a folder" else odd.unlink()


@pytest.mark.parametrize("count", [0, 2])
def test_too_few_pictures(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"3 pictures or more.*got {count or 'none'}"):
        load("folder", fill(tmp_path, count))
    images = load("folder", fill(tmp_path, 3), settings=FolderSettings(size=12))
    assert (len(images.train), len(images.validation), len(images.test)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"size": 1}, "--size"),
        ({"size": "12"}, "--size"),
        ({"size": 10**7}, "free memory"),
        ({"fit": "squeeze"}, "--fit"),
        ({"color": 1}, "--color"),
        ({"split_seed": None}, "--split-seed"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load("folder", fill(tmp_path, 3), settings=FolderSettings(**changed))


def test_settings_are_of_the_folder_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--dataset folder, got 'digits'"):
        load("digits", settings=FolderSettings(size=8))
    with pytest.raises(ValueError, match="--data-dir, got none"):
        load("folder")
    with pytest.raises(ValueError, match="--data-dir, got --download"):
        load("folder", tmp_path, download=True)
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load("folder", tmp_path / "none")
