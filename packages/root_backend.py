"""What `pip install .` in the repository's root builds: packages/linattn, the one name for all."""

import os
from pathlib import Path

from hatchling.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

os.chdir(Path(__file__).parent / "linattn")  # a build backend works in the folder of its package
