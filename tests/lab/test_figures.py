"""Figures by name: what is written is read again, and what is damaged is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from linattn_lab.figures import FILE, add_figures, read_figures, write_figures


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_figures(tmp_path, {"old": 1})
    write_figures(tmp_path, {"a/loss": 0.1, "a/steps": 3, "lost": math.nan, "unknown": None})
    add_figures(tmp_path, {"a/steps": 4, "b": 2.5})
    figures = read_figures(tmp_path)
    assert math.isnan(figures.pop("lost")) and math.isnan(figures.pop("unknown"))
    assert figures == {"a/loss": 0.1, "a/steps": 4, "b": 2.5}


@pytest.mark.parametrize("content", ["{", "[]", '{"a": "x"}', '{"a": [1]}', "\xff"])
def test_damaged_figures_are_refused_by_the_files_name(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"figures\.json.*expected"):
        read_figures(tmp_path)
