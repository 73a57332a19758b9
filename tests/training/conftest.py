from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.toy import toy_run


@pytest.fixture(autouse=True)
def _plain_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINATTN_DEBUG", raising=False)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run folder that does not exist yet."""
    return tmp_path / "run"


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that nothing disturbed: checkpoints every 4, evaluations every 3."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    toy_run(out, checkpoint_every=4, eval_every=3)
    return out
