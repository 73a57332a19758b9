"""What a run ran on is told without ever failing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from linattn_models.training.environment import environment, source_commit


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_checkout_is_found_from_a_folder_in_it(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert source_commit(tmp_path) is None  # no commit yet
    git(tmp_path, "commit", "--allow-empty", "--message", "first")
    (tmp_path / "src").mkdir()
    assert source_commit(tmp_path / "src") == git(tmp_path, "rev-parse", "HEAD")


def test_what_cannot_be_found_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert source_commit(tmp_path) is None
    assert source_commit(tmp_path / "absent") is None
    monkeypatch.setenv("PATH", "")
    assert source_commit(tmp_path) is None
    assert environment(torch.device("cpu"))["commit"] is None


def test_it_names_device_and_threads() -> None:
    told = environment(torch.device("cpu"))
    assert told["device"] == "cpu"
    assert told["threads"] == torch.get_num_threads()
