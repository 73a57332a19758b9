"""All records in one archive, of the same bytes each time."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from replication.archive import Flags, main, pack
from replication.experiments import ROOT


def test_the_archive_has_every_record_and_the_claims(tmp_path: Path) -> None:
    main(Flags(tmp_path / "records.tar.gz"))
    with tarfile.open(tmp_path / "records.tar.gz") as archive:
        names = {name.removeprefix("linattn-records/") for name in archive.getnames()}
        runs = archive.extractfile("linattn-records/docs/results/copy_task/runs.jsonl")
        assert runs is not None
        assert runs.read() == (ROOT / "docs/results/copy_task/runs.jsonl").read_bytes()
    assert {"replication/claims.csv", "docs/replication/results.json", "CITATION.cff"} <= names
    assert {f"docs/results/{theme}/runs.jsonl" for theme in ("speech", "attentions")} <= names


def test_days_and_owners_of_files_change_nothing(tmp_path: Path) -> None:
    for number, folder in enumerate((tmp_path / "a", tmp_path / "b")):
        file = folder / "docs" / "replication" / "results.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}\n")
        os.utime(file, (number, number))
        file.chmod(0o600 + 0o40 * number)
    packed = pack(tmp_path / "a")
    assert packed == pack(tmp_path / "b")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["linattn-records/docs/replication/results.json"]
