from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.toy import toy_run


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that nothing disturbed, to read only."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    toy_run(out, checkpoint_every=4, eval_every=3)
    return out
