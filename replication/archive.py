"""Packs all records into one archive: python -m replication.archive FILE.tar.gz

It holds what docs/ has of measurements (records, curves, claims), with the citation and the
license. The same files make the same bytes, whose checksum is printed.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup  # noqa: F401  (before torch)

import dataclasses
import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import tyro

from linattn_lab.script import parse_flags, run_script
from linattn_models.basics.files import replace_file
from replication.experiments import ROOT

RECORDS = ("docs/results/**/*.json", "docs/results/**/*.jsonl", "docs/replication/*.json")
OTHERS = ("replication/claims.csv", "replication/experiments.toml", "CITATION.cff", "LICENSE")


@dataclasses.dataclass(frozen=True)
class Flags:
    """Pack the records of all measurements."""

    file: tyro.conf.Positional[Path] = Path("linattn-records.tar.gz")
    """The archive."""


def main(flags: Flags) -> None:
    """Writes the archive and prints its checksum."""
    content = pack(ROOT)
    replace_file(flags.file, content)
    print(f"{flags.file}: {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


def pack(root: Path) -> bytes:
    """The archive of a checkout, without days, owners and modes of files."""
    files = sorted({file for places in (*RECORDS, *OTHERS) for file in root.glob(places)})
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in files:
            entry = tarfile.TarInfo(f"linattn-records/{file.relative_to(root).as_posix()}")
            content = file.read_bytes()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
