"""--download against a server on the loopback: whole files are kept, others refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pixels.datasets import cifar, load, sources
from pixels.datasets.sources import SOURCES, Source, fetch
from tests.apps.app_scripts import Script
from tests.apps.pixel_generation.datasets.test_cifar import images_of as color_images
from tests.apps.pixel_generation.datasets.test_cifar import write_batches
from tests.apps.pixel_generation.datasets.test_idx import TEST, TRAIN, idx_bytes, images_of

GZIPPED = (f"{TRAIN}.gz", f"{TEST}.gz")


class Served:
    """A folder that a server on the loopback offers, and the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.address = ""

    def handler(self) -> type[SimpleHTTPRequestHandler]:
        served = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                served.requests.append(self.path)

        return Handler

    def source(self, name: str) -> Source:
        """The source of a dataset as if it were published here, with these files' checksums."""
        files = SOURCES[name].checksums
        md5 = {file: hashlib.md5((self.folder / file).read_bytes()).hexdigest() for file in files}
        return replace(SOURCES[name], base_url=self.address, checksums=md5)


@pytest.fixture
def served(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Served(tmp_path_factory.mktemp("served"))
    handler = partial(served.handler(), directory=str(served.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.address = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def put_mnist(folder: Path) -> None:
    for name, count in zip(GZIPPED, (20, 3), strict=True):
        (folder / name).write_bytes(gzip.compress(idx_bytes(images_of(count))))


def put_cifar(folder: Path, scratch: Path) -> None:
    write_batches(scratch / cifar.FOLDER, color_images(20), color_images(4))
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(scratch / cifar.FOLDER, cifar.FOLDER)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_images_are_downloaded_once_into_the_cache(
    served: Served, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put_mnist(served.folder)
    monkeypatch.setitem(sources.SOURCES, name, served.source(name))
    first = load(name, download=True)  # type: ignore[arg-type]
    assert (len(first.train), len(first.validation), len(first.test)) == (18, 2, 3)
    assert sorted(path.name for path in (cache / name).iterdir()) == sorted(GZIPPED)
    assert len(served.requests) == 2
    again = load(name)  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.train, first.train)
    load(name, download=True)  # type: ignore[arg-type]
    assert len(served.requests) == 2


def test_an_archive_is_unpacked_into_the_folder_that_is_named(
    served: Served, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    put_cifar(served.folder, tmp_path / "scratch")
    monkeypatch.setattr(cifar, "RECORDS", 4)
    monkeypatch.setitem(sources.SOURCES, "cifar10", served.source("cifar10"))
    images = load("cifar10", tmp_path / "data", download=True)
    np.testing.assert_array_equal(images.test, color_images(4))
    assert (tmp_path / "data" / "cifar10" / cifar.FOLDER).is_dir()
    assert not cache.exists()


def test_a_wrong_checksum_is_refused_and_nothing_kept(served: Served, tmp_path: Path) -> None:
    put_mnist(served.folder)
    source = served.source("mnist")
    (served.folder / GZIPPED[0]).write_bytes(b"changed on the way")
    with pytest.raises(ValueError, match="MD5"):
        fetch(source, tmp_path / "mnist")
    assert list((tmp_path / "mnist").iterdir()) == []


def test_a_damaged_file_is_downloaded_again(served: Served, tmp_path: Path) -> None:
    put_mnist(served.folder)
    (tmp_path / GZIPPED[0]).write_bytes(b"half of a file")
    fetch(served.source("mnist"), tmp_path)
    assert (tmp_path / GZIPPED[0]).read_bytes() == (served.folder / GZIPPED[0]).read_bytes()


def test_without_a_network_one_sentence_says_what_to_do(
    script: Script, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unreachable = replace(SOURCES["mnist"], base_url="http://127.0.0.1:1/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(sources.SOURCES, "mnist", unreachable)
    flags = ["--preset", "smoke", "--dataset", "mnist", "--out", tmp_path / "run"]
    for asked, named in {(): "--download", ("--download",): f"{TRAIN}.gz"}.items():
        done = script("train", *flags, *asked)
        assert done.code == 2 and named in done.stderr
        assert f"{cache}/mnist" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "run").exists()


def test_the_published_checksum_is_that_of_real_mnist(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("mnist") / "mnist"
    for name, md5 in SOURCES["mnist"].checksums.items():
        content = io.BytesIO((folder / name).read_bytes())
        assert hashlib.file_digest(content, "md5").hexdigest() == md5
    before = sorted(folder.iterdir())
    fetch(replace(SOURCES["mnist"], base_url="http://127.0.0.1:1/"), folder)
    assert sorted(folder.iterdir()) == before  # nothing was needed
