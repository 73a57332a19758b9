"""Training asks for its extra when it is missing."""

from __future__ import annotations

import importlib
import sys

import pytest

import linattn_models.training


@pytest.mark.parametrize("name", ["accelerate", "filelock", "pydantic", "tensorboard", "tqdm"])
def test_a_missing_dependency_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=r"install linattn-models with its extra \[train\]"
    ) as refusal:
        importlib.reload(linattn_models.training)
    assert f"needs {name};" in str(refusal.value)
