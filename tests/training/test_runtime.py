"""The environment of a run: what is recorded, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

from linattn_models.training import runtime
from linattn_models.training.runtime import deterministic_kernels, environment, source_commit
from tests.training.toy import toy_run


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


@pytest.mark.parametrize(
    ("processes", "kind", "named"),
    [
        (3, DistributedType.MULTI_CPU, "batch_size: expected a multiple of the 3"),
        (2, DistributedType.FSDP, "got accelerate set up for FSDP"),
    ],
)
def test_processes_that_cannot_share_a_batch_or_a_model_are_refused(
    out: Path, monkeypatch: pytest.MonkeyPatch, processes: int, kind: DistributedType, named: str
) -> None:
    accelerator = SimpleNamespace(
        num_processes=processes, distributed_type=kind, device=torch.device("cpu")
    )
    monkeypatch.setattr(runtime, "Accelerator", lambda **settings: accelerator)
    with pytest.raises(ValueError, match=named):
        toy_run(out, batch_size=4)
    assert not out.exists()


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_kernels_are_asked_for_while_training_on_cuda(before: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        with deterministic_kernels(torch.device("cuda")):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled() is not before
        assert torch.are_deterministic_algorithms_enabled() is before
        with deterministic_kernels(torch.device("cpu")):
            assert torch.are_deterministic_algorithms_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)
