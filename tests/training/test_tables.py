"""Tables are Markdown, and a figure says whether it was measured, estimated or not given."""

from __future__ import annotations

import pytest

from linattn_models.training import figure, markdown_table


def test_columns_line_up() -> None:
    table = markdown_table(["name", "n"], [["a", "1"], ["longer", "1,000"]])
    assert table == (
        "| name   |     n |\n"
        "| ------ | ----: |\n"
        "| a      |     1 |\n"
        "| longer | 1,000 |\n"
    )  # fmt: skip


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
def test_figures(value: float | None, estimated: bool, text: str) -> None:
    assert figure(value, estimated) == text
