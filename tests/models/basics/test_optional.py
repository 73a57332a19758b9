"""A module that needs packages says how to install them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from linattn_models.basics.optional import require_packages

COMMAND = "`python -m pip install no-such 'none[a]'` installs what is missing"


def test_what_is_missing_is_named_with_the_command() -> None:
    require_packages("mine", "json")
    with pytest.raises(ImportError, match=r"^mine: expected the packages") as caught:
        require_packages("mine", "json", "no-such", "none[a]")
    assert COMMAND in str(caught.value)


def test_a_module_that_is_run_ends_with_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(
        "from linattn_models.basics.optional import require_packages\n"
        "require_packages('mine', 'no-such', 'none[a]')\n"
    )
    command = [sys.executable, "-m", "mine", "no-such"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and ended.stderr.startswith("error: mine: expected")
    assert COMMAND in ended.stderr and ended.stderr.count("\n") == 1
