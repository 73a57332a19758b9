"""Curves are pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from linattn_lab.plots import (
    Panel,
    choose_styles,
    label_axis,
    label_log_axis,
    plot_panels,
    plot_run,
    points,
    run_panels,
)
from linattn_models.training import RunFolder

NAMES = (
    "linear",
    "linear (cuda)",
    "softmax",
    "softmax SDPA",
    "lsh-4",
    "lstm",
    "gated",
    "window",
    "z",
)
LINES = [
    {"step": 1, "split": "train", "loss": 2.0, "seconds": 0.5},
    {"step": 2, "split": "eval", "loss": None, "bits": 1.5, "seconds": 1.0},
    {"step": 2, "split": "train", "loss": 1.0, "seconds": 1.0},
]


@given(low=st.floats(1e-6, 1e6), ratio=st.one_of(st.floats(1.1, 20), st.floats(1.1, 1e9)))
@example(low=0.85, ratio=2.1)
def test_a_log_axis_has_several_ticks_with_distinct_labels(low: float, ratio: float) -> None:
    place = Figure().subplots()
    place.set(yscale="log", ylim=(low, low * ratio))
    label_log_axis(place.yaxis)
    ticks = [x for x in place.get_yticks() if low <= x <= low * ratio]
    labels = place.yaxis.get_major_formatter().format_ticks(ticks)
    assert 3 <= len(set(labels)) == len(ticks)


@given(high=st.floats(1e-6, 1e6))
@example(high=0.9)
@example(high=20.0)
def test_an_axis_has_distinct_labels(high: float) -> None:
    place = Figure().subplots()
    place.set(xlim=(0, high))
    label_axis(place.xaxis)
    ticks = [x for x in place.get_xticks() if x <= high]
    labels = place.xaxis.get_major_formatter().format_ticks(ticks)
    assert 2 <= len(set(labels)) == len(ticks)


def test_panels_become_a_picture(tmp_path: Path) -> None:
    curves = {"a": points(LINES, "loss", split="train"), "none": []}
    errors = {"a": [0.1, 0.5], "none": []}
    panels = [Panel("updates", curves, errors=errors), Panel("seconds", curves)]
    path = plot_panels(tmp_path / "curves.png", panels, ylabel="loss", log_scale=True)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_curves_of_one_kind_have_one_color_and_other_dashes() -> None:
    names = ["1 head of 32", "8 heads of 32", "1 head of 64"]
    one, eight, wide = choose_styles(names, lambda name: name.rpartition(" ")[2]).values()
    assert one["color"] == eight["color"] != wide["color"]
    assert one["ls"] != eight["ls"]


@given(names=st.lists(st.sampled_from(NAMES), unique=True))
def test_a_kind_of_attention_has_its_color_in_every_picture(names: list[str]) -> None:
    styles = choose_styles(names)
    alone = {name: choose_styles([name])[name]["color"] for name in NAMES[:-3]}
    assert all(styles[x]["color"] == alone[x] for x in names if x in alone)
    assert alone["softmax"] == alone["softmax SDPA"] != alone["linear"] == alone["linear (cuda)"]
    assert len({(x["color"], x["ls"]) for x in styles.values()}) == len(names)


def run_with(folder: Path, lines: list[dict[str, float | str | None]]) -> RunFolder:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return RunFolder(folder)


def test_a_run_has_a_panel_for_each_quantity(tmp_path: Path) -> None:
    run = run_with(tmp_path, LINES)
    panels = run_panels(run.metrics())
    assert [panel.title for panel in panels] == ["loss", "bits"]
    assert [list(panel.curves) for panel in panels] == [["eval", "train"], ["eval"]]
    assert plot_run(run).read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_measurement_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        plot_run(run_with(tmp_path, []))
