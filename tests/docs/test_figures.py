"""The picture of the front page shows the results that are committed."""

from __future__ import annotations

import runpy
from pathlib import Path

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_committed_picture_is_of_the_committed_results() -> None:
    draw = runpy.run_path(str(FIGURES / "crossover.py"))["draw"]

    assert draw() == (FIGURES / "crossover.svg").read_text(), "run python docs/figures/crossover.py"
