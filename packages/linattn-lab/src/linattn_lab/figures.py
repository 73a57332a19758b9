"""The figures of a run: numbers by name in figures.json, from which the replication reads.

Every command of an application leaves them in its run folder. A figure that is not finite is null
in the file and NaN here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from pydantic import RootModel

from linattn_lab.store import read_model
from linattn_models.basics.files import replace_file

FILE = "figures.json"


class _Figures(RootModel[dict[str, float | None]]):
    pass


def write_figures(folder: Path, figures: Mapping[str, float | None]) -> None:
    """Writes the figures of a folder, in place of those that it had."""
    values = {name: _finite(value) for name, value in figures.items()}
    replace_file(folder / FILE, f"{json.dumps(values, allow_nan=False, indent=1)}\n".encode())


def add_figures(folder: Path, figures: Mapping[str, float | None]) -> None:
    """Writes figures beside those of other commands in the same folder."""
    earlier = read_figures(folder) if (folder / FILE).exists() else {}
    write_figures(folder, {**earlier, **figures})


def read_figures(folder: Path) -> dict[str, float]:
    """Returns the figures of a folder."""
    values = read_model(folder / FILE, _Figures).root
    return {name: math.nan if value is None else value for name, value in values.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
