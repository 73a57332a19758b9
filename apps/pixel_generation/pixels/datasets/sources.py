"""Where each dataset is published, its download, and the sentences about missing or damaged files.

The checksums are those that the datasets are published with, so a file that arrives changed or cut
is never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pooch

from linattn_core.errors import expected


@dataclass(frozen=True)
class Source:
    """Where a dataset is published.

    Attributes:
        page: where people find its files.
        base_url: the address that a file's name is appended to.
        checksums: the MD5 of each file, by name. A .tar.gz is unpacked beside itself.
    """

    page: str
    base_url: str
    checksums: Mapping[str, str]


SOURCES = {
    "mnist": Source(
        "a mirror of MNIST (https://ossci-datasets.s3.amazonaws.com/mnist/FILE)",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        },
    ),
    "fashion-mnist": Source(
        "the Fashion-MNIST page (https://github.com/zalandoresearch/fashion-mnist)",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        },
    ),
    "cifar10": Source(
        "the CIFAR-10 page (https://www.cs.toronto.edu/~kriz/cifar.html)",
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
}


def fetch(source: Source, folder: Path) -> None:
    """Downloads into `folder` each file of `source` that is not there yet, whole."""
    pooch.get_logger().setLevel("WARNING")  # the progress bar tells enough
    for name, md5 in source.checksums.items():
        url, advice = source.base_url + name, f"put {name} from {source.page} into {folder} by hand"
        try:
            pooch.retrieve(
                url,
                f"md5:{md5}",
                fname=name,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=True),
                processor=pooch.Untar(extract_dir=".") if name.endswith(".tar.gz") else None,
            )
        except OSError as error:
            raise OSError(expected(url, "a download", error, advice)) from error
        except ValueError as error:
            wanted = f"a file with the MD5 {md5}"
            raise ValueError(expected(url, wanted, "another one", advice)) from error


def damage_error(path: Path, wanted: str, got: object, source: Source) -> ValueError:
    """An error for a file that is there and is not what it should be."""
    return ValueError(expected(str(path), wanted, got, f"download it again from {source.page}"))


def missing(wanted: str, folders: Sequence[Path], source: Source) -> FileNotFoundError:
    """An error for a file that is in none of the folders where it was looked for."""
    places = " or ".join(str(folder) for folder in folders)
    return FileNotFoundError(
        f"expected {wanted} in {places}, got no such file; download it with --download, put it "
        f"there from {source.page}, or name another folder with --data-dir"
    )
