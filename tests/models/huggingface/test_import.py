"""A transformers that is missing, or that is too old."""

from __future__ import annotations

import importlib
import sys

import pytest

pytest.importorskip("transformers", reason="needs the extra [transformers]")

import linattn_models.huggingface
from linattn_models.huggingface.version import check_version


def test_a_missing_transformers_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers`"):
        importlib.reload(linattn_models.huggingface)


@pytest.mark.parametrize("version", ["4.57.1", "5.22.0", "5", "unknown"])
def test_an_old_transformers_is_refused(version: str) -> None:
    with pytest.raises(ImportError, match=version):
        check_version(version)


@pytest.mark.parametrize("version", ["5.23.0", "5.23rc1", "5.30.0.dev0", "6.0", "6"])
def test_a_newer_one_is_not(version: str) -> None:
    check_version(version)
