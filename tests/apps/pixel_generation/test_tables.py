"""Tables are Markdown, and a figure says whether it was measured, estimated or not given."""

from __future__ import annotations

import pytest
from markdown_tables import figure, markdown_table
from paper_figures import PAPER


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


def test_the_paper_s_factors() -> None:
    """The gains that the paper names beside its figures: 317 on MNIST, 4,462 on CIFAR-10."""
    for shape, gain in (("mnist", 317), ("cifar10", 4_462)):
        rows = {row.method: row.images_per_second for row in PAPER[shape]}
        assert rows["linear"] / rows["softmax"] == pytest.approx(gain, rel=2e-3)  # type: ignore[operator]
