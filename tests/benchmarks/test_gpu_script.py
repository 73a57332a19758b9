"""The prepared commands for a GPU: they end in nine minutes, and what they name exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.case import select_cases
from benchmarks.cases import CASES


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_dry_run_names_commands_that_exist(repository: Path) -> None:
    command = ["bash", repository / "benchmarks" / "gpu.sh", "--dry-run"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = [int(line.split()[0]) for line in ended.stdout.splitlines()]
    assert 0 < sum(seconds) <= 9 * 60
    modules, cases, tests = (
        re.findall(pattern, ended.stdout)
        for pattern in (r"python3 -m (\S+)", r"--only (\S+)", r"tests/\S+")
    )
    assert modules and cases and tests
    assert all(map(find_spec, modules))
    assert all(select_cases(CASES, name, "cuda") for name in cases)
    assert all((repository / path).exists() for path in tests)
