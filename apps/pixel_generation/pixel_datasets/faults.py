"""The one sentence that a missing or damaged file is reported with.

Each names the file, what was expected, what came, and where the data is had, because that is
what somebody needs whose download broke off.
"""

from __future__ import annotations

from pathlib import Path


def damaged(path: Path, expected: str, came: str, source: str) -> ValueError:
    """An error for a file that is there and is not what it should be."""
    return ValueError(f"{path}: expected {expected}, found {came}; fetch it again from {source}")


def missing(expected: str, folders: list[Path], source: str) -> FileNotFoundError:
    """An error for a file that is in none of the folders where it was looked for."""
    places = " or ".join(str(folder) for folder in folders)
    return FileNotFoundError(
        f"expected {expected} in {places}, found no such file; it is had from {source}"
    )


def folders_of(name: str, data_dir: Path | None, source: str) -> list[Path]:
    """Where the files of dataset `name` may lie: data_dir/name if there is one, then data_dir."""
    if data_dir is None:
        raise ValueError(
            f"dataset {name} is read from files: expected --data-dir with their folder, got none;"
            f" they are had from {source}"
        )
    return [folder for folder in (data_dir / name, data_dir) if folder.is_dir()]
