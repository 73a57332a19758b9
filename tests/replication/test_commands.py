"""The commands' flags: bad ones are one sentence, before anything is measured."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replication import equations, speedup
from replication.sources import ROOT


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lengths": (784, 0)}, "--lengths: expected numbers of 2 or more, got 784 0."),
        ({"lengths": (1,)}, "--lengths: expected numbers of 2 or more, got 1."),
        ({"lengths": ()}, "--lengths: expected numbers of 2 or more, got none."),
        ({"batches": ()}, "--batches: expected numbers of 1 or more, got none."),
        ({"batches": (-1,)}, "--batches: expected numbers of 1 or more, got -1."),
        ({"case_seconds": float("nan")}, "--case-seconds: expected more than 0, finite, got nan."),
        ({"case_seconds": float("inf")}, "--case-seconds: expected more than 0, finite, got inf."),
        ({"case_seconds": 0.0}, "--case-seconds: expected more than 0, finite, got 0.0."),
        ({"positions": 1}, "--positions: expected 2 or more, got 1."),
    ],
)
def test_numbers_out_of_range_are_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        speedup.main(dataclasses.replace(speedup.Flags(tmp_path), **changes))


@pytest.mark.parametrize(
    "command", [lambda out: speedup.main(speedup.Flags(out)),
                lambda out: equations.main(equations.Flags(out))]
)  # fmt: skip
def test_a_file_in_the_place_of_a_folder_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Path], None]
) -> None:
    def measures(*_: object) -> None:
        raise AssertionError("measured first")

    monkeypatch.setattr(speedup, "measure_limits", measures)
    monkeypatch.setattr(equations, "least_similarity", measures)
    (tmp_path / "file").touch()

    with pytest.raises(FileExistsError):
        command(tmp_path / "file")


MODULES = [
    "replication.speedup",
    "replication.equations",
    "replication.paper",
    "replication.report",
]


@pytest.mark.parametrize("module", MODULES)
def test_a_wrong_flag_is_named(module: str) -> None:
    command = [sys.executable, "-m", module, "--out", "x", "--no-such-flag", "y"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "--no-such-flag" in ended.stderr
