"""The prepared commands for a GPU: they end in nine minutes, and their cases exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.case import select_cases
from benchmarks.cases import CASES


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_dry_run_names_commands_that_exist(repository: Path) -> None:
    script = repository / "benchmarks" / "gpu.sh"
    ended = subprocess.run(
        ["bash", script, "--dry-run"], capture_output=True, text=True, check=True
    )

    lines = [line.split(" ", 1) for line in ended.stdout.splitlines()]
    assert 0 < sum(int(seconds) for seconds, _ in lines) <= 9 * 60
    commands = [command for _, command in lines]
    names = [name for x in commands for name in re.findall(r"--only (\S+)", x)]
    assert len(names) >= 6
    for name in names:
        assert select_cases(CASES, name, "cuda"), name
    for path in re.findall(r"tests/\S+", " ".join(commands)):
        assert (repository / path).exists(), path
