"""For tests of the repository itself: its tracked files and its packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def packages(repository: Path) -> list[Path]:
    """The folders of the packages."""
    found = sorted(path.parent for path in repository.glob("packages/*/pyproject.toml"))
    assert found, "no packages found"
    return found


@pytest.fixture(scope="session")
def tracked_files(repository: Path) -> list[Path]:
    """The text files that are, or would be, in the repository."""
    if not (repository / ".git").exists():
        pytest.skip("not a git checkout, so nothing says which files belong to the project")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository, capture_output=True, check=True, text=True,
    )  # fmt: skip
    paths = [repository / name for name in listing.stdout.split("\0") if name]
    # A file deleted but not yet committed is still listed.
    return [path for path in paths if path.is_file() and is_text(path)]


def is_text(path: Path) -> bool:
    """Tells text from binary as git does: by a zero byte near the beginning."""
    with path.open("rb") as file:
        return b"\0" not in file.read(8000)
