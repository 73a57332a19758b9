"""Numbers and tables in Markdown."""

from __future__ import annotations

import pytest

from linattn_lab.tables import figure, markdown_table, memory, seconds


def test_cells_stay_as_they_are_written_and_columns_line_up() -> None:
    table = markdown_table(["name", "n"], [["a", "1.50"], ["longer", "1,000"]])
    lines = table.splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["a", "1.50"]
    assert lines[3] == "| longer | 1,000 |"
    assert lines[1].startswith("|:") and lines[1].endswith(":|")
    assert len(set(map(len, lines))) == 1 and table.endswith("|\n")


@pytest.mark.parametrize(
    ("value", "estimated", "text"),
    [
        (None, False, "-"),
        (0.6444, False, "0.644"),
        (0.004, False, "0.00400"),
        (142.8, False, "143"),
        (8651.4, True, "~8,651"),
        (3.4, False, "3.40"),
    ],
)
def test_figures_have_three_digits(value: float | None, estimated: bool, text: str) -> None:
    assert figure(value, estimated) == text


def test_units_fit_the_size() -> None:
    assert [seconds(x) for x in (2.0, 0.25, 3.1e-5, None)] == ["2.00 s", "250 ms", "31.0 us", "-"]
    assert [memory(x) for x in (1.5e9, 2.5e8, 640, None)] == ["1.50 GB", "250 MB", "640 B", "-"]
