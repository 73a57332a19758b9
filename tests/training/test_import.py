"""Training says how to install a package that is missing."""

from __future__ import annotations

import importlib
import sys

import pytest

import linattn_models.training


@pytest.mark.parametrize("name", ["accelerate", "filelock", "pydantic", "tensorboard", "tqdm"])
def test_a_missing_dependency_has_its_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}`"):
        importlib.reload(linattn_models.training)
