"""What must not be in the repository: a machine's paths, a registry's address, large files."""

from __future__ import annotations

import re
from pathlib import Path

# An absolute path into somebody's folders; a path inside another word or address is not one.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:home|root|work|opt|Users|mnt|srv)/\w")
# Where packages come from is the business of the machine's own settings of pip.
REGISTRY = re.compile(
    r"pypi\.(?:org|python\.org)/simple|files\.pythonhosted\.org|download\.pytorch\.org"
    r"|--(?:extra-)?index-url|--trusted-host"
)
# No registry has these packages: what is installed is a folder, such as ./packages/linattn-core.
UNPUBLISHED = re.compile(r"pip install\b.*[\s'\"]linattn-")
LARGEST = 1_000_000  # bytes; pictures and results, never data sets or wheels


def test_no_path_of_a_machine(tracked_files: list[Path]) -> None:
    assert found(MACHINE_PATH, tracked_files) == []


def test_no_registry(tracked_files: list[Path]) -> None:
    assert found(REGISTRY, tracked_files) == []


def test_nothing_is_installed_by_a_name_that_no_registry_has(tracked_files: list[Path]) -> None:
    assert found(UNPUBLISHED, tracked_files) == []


def test_no_large_file(repository: Path, tracked_files: list[Path]) -> None:
    large = [path for path in tracked_files if path.stat().st_size > LARGEST]

    assert [str(path.relative_to(repository)) for path in large] == []


def found(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    """Returns `file:line: text` for each line that matches, this file's own patterns aside."""
    return [
        f"{path.name}:{number}: {line.strip()[:120]}"
        for path in files
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
