"""Published records: the commits that they name are in the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMIT = re.compile(r'"commit": ?"([0-9a-f]+)"')


def git(*arguments: str, words: str = "") -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, input=words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no repository: {done.stderr.strip()}")
    return done.stdout


def test_commits_of_records_exist() -> None:
    """A commit of which nothing is known is null there: "unknown" in tables."""
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("the repository has no history")
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.json")]
    commits = sorted({commit for text in texts for commit in COMMIT.findall(text)})
    assert commits
    found = git("cat-file", "--batch-check", words="".join(f"{x}^{{commit}}\n" for x in commits))
    missing = [line for line in found.splitlines() if " commit " not in line]
    assert not missing
