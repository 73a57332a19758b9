"""The picture of the front page shows the results that are committed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.fixture(scope="module")
def crossover() -> dict[str, Any]:
    """The names of the script that draws the picture."""
    return runpy.run_path(str(FIGURES / "crossover.py"))


def test_committed_picture_is_of_the_committed_results(crossover: dict[str, Any]) -> None:
    drawn = crossover["draw"]()

    assert drawn == (FIGURES / "crossover.svg").read_text(), "run python docs/figures/crossover.py"


def test_gains_are_those_of_the_tables(crossover: dict[str, Any]) -> None:
    (points,) = crossover["gains"]("lengths").values()
    document = (FIGURES.parent / "results" / "lengths" / "results.md").read_text()

    row = re.compile(r"^\| ([\d,]+) \|.* (\d+\.\d\d) \|(?: [\d.-]+ \|){5}$", re.MULTILINE)
    rows = row.findall(document)
    tabled = {int(length.replace(",", "")): float(gain) for length, gain in rows}
    assert {length: pytest.approx(gain, rel=0.01) for length, gain in points} == tabled
