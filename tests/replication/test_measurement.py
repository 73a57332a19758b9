"""Records travel to JSON and back; measurements are stale when their code has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.measure.machine import Machine
from replication import machine as machines
from replication.collect import Status, best, name_of
from replication.measurement import Measurement, Spent, read, write


def test_records_come_back(tmp_path: Path, machine: Machine) -> None:
    spent = Spent(2.0, 3e9, 1.0, 1e9)
    records = [
        Measurement("copy", "laptop", machine, {"linear/loss": 0.25}, spent),
        Measurement("lengths", "paper", machine, error="RuntimeError: exit code 1: no"),
    ]
    write(tmp_path / "records.json", records)

    assert read(tmp_path / "records.json") == records


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 99, "measurements": []}']
)
def test_a_damaged_file_or_another_version_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "records.json").write_text(text)

    with pytest.raises(ValueError, match=r"records\.json: expected measurements of version 1, got"):
        read(tmp_path / "records.json")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of two files, in the place of this one."""
    monkeypatch.setattr(machines, "ROOT", tmp_path)
    for name in ("code.py", "other.py"):
        (tmp_path / name).write_text("before\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "first")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_measurement_is_stale_when_what_it_depends_on_has_changed(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "--short", "HEAD")
    (checkout / "other.py").write_text("after\n")
    assert machines.why_stale(commit, ["code.py"]) is None

    (checkout / "code.py").write_text("after\n")
    reason = machines.why_stale(commit, ["code.py"])
    assert reason is not None
    assert reason.startswith("1 ")


def test_uncommitted_and_unknown_code_is_stale(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "--short", "HEAD")

    assert machines.why_stale(f"{commit}-dirty", ["code.py"]) == "measured with uncommitted changes"
    assert "not here" in str(machines.why_stale("0123456789ab", ["code.py"]))


def test_only_what_a_measurement_depends_on_makes_its_commit_dirty(
    checkout: Path, machine: Machine
) -> None:
    (checkout / "other.py").write_text("after\n")

    assert machines.at_commit(machine, ["code.py"]).commit == "abc1234"
    assert machines.at_commit(machine, ["other.py"]).commit == "abc1234-dirty"


def test_verdicts_rest_on_fresh_and_sound_measurements(machine: Machine) -> None:
    def of(commit: str, **others: object) -> Measurement:
        at = Machine("2026-11-21", commit, "a CPU", "torch", "cpu", 2)
        return Measurement("copy", **{"preset": "laptop", "machine": at, **others})  # type: ignore[arg-type]

    fresh, stale, failed, smoke = of("a"), of("b"), of("c", error="no"), of("d", preset="smoke")
    status = Status("a", {name_of(stale): "changed"})

    assert best([stale, fresh, failed, smoke], status) == {"copy": fresh}
    assert best([failed, stale, smoke], status) == {"copy": stale}
    assert best([smoke], status) == {}
