"""Tables are Markdown, figures say whether they are estimated, curves are pictures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from linattn_models.training import Panel, figure, markdown_table, plot_panels, points
from linattn_models.training.metrics import label_log_axis


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
def test_figures_have_three_digits(value: float | None, estimated: bool, text: str) -> None:
    assert figure(value, estimated) == text


LINES = [
    {"step": 1, "split": "train", "loss": 2.0, "seconds": 0.5},
    {"step": 2, "split": "eval", "loss": None, "bits": 1.5, "seconds": 1.0},
    {"step": 2, "split": "train", "loss": 1.0, "seconds": 1.0},
]


def test_points_of_a_quantity() -> None:
    assert points(LINES, "loss", split="train") == [(1, 2.0), (2, 1.0)]
    assert points(LINES, "loss", split="train", over="seconds", scale=2) == [(1, 2.0), (2, 1.0)]
    assert points(LINES, "bits", split="train") == []
    assert math.isnan(points(LINES, "loss", split="eval")[0][1])


@given(low=st.floats(1e-6, 1e6), ratio=st.one_of(st.floats(1.1, 20), st.floats(1.1, 1e9)))
@example(low=0.85, ratio=2.1)
def test_a_log_axis_has_several_ticks_with_distinct_labels(low: float, ratio: float) -> None:
    place = Figure().subplots()
    place.set(yscale="log", ylim=(low, low * ratio))
    label_log_axis(place.yaxis)
    ticks = [x for x in place.get_yticks() if low <= x <= low * ratio]
    labels = place.yaxis.get_major_formatter().format_ticks(ticks)
    assert 3 <= len(set(labels)) == len(ticks)


def test_panels_become_a_picture(tmp_path: Path) -> None:
    curves = {"a": points(LINES, "loss", split="train"), "none": []}
    panels = [Panel("updates", curves), Panel("seconds", curves)]
    path = plot_panels(tmp_path / "curves.png", panels, ylabel="loss", log_scale=True)
    assert path.read_bytes().startswith(b"\x89PNG")
