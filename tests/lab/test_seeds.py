"""Seeds of one training: runs, means, noise."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_lab.seeds import (
    IN_WORDS,
    average_curves,
    base_name,
    compare_rows,
    describe_difference,
    error_name,
    figure_with_noise,
    judge_difference,
    merge_seeds,
    noise,
    read_figures,
    repeat,
    with_noise,
)
from linattn_lab.trainings import Variant
from linattn_models.training import TrainingFlags

ONE = Variant(
    "linear",
    TrainingFlags(steps=7, batch_size=2, seed=5),
    lambda flags, out, resume: None,
    {"attention": "x"},
)


def test_a_curve_is_the_mean_of_its_seeds_where_all_have_points() -> None:
    drawn = {"a": [(1, 2.0), (2, 1.0), (3, 0.5)], "b": [(1, 7.0)], "a-seed1": [(2, 3.0), (1, 2.0)]}
    means, errors = average_curves(drawn)
    assert means == {"a": [(1, 2.0), (2, 2.0)], "b": [(1, 7.0)]}
    assert errors == {"a": [0.0, pytest.approx(noise([1.0, 3.0]))], "b": [0.0]}


def row(loss: float | None) -> dict[str, Any]:
    return {"steps": 7, "train_seconds": 2.0, "metrics": {"loss": loss, "images": 9}}


def test_further_seeds_leave_the_first_run_as_it_is() -> None:
    first, *others = repeat([ONE, replace(ONE, name="softmax")], 3)
    assert first == ONE
    named = [(x.name, x.flags.seed) for x in others[1:]]
    assert named == [
        ("linear-seed6", 6), ("softmax-seed6", 6), ("linear-seed7", 7), ("softmax-seed7", 7)
    ]  # fmt: skip
    assert {base_name(x.name) for x in others} == {"linear", "softmax"}


def test_a_row_has_the_means_of_its_seeds_and_their_noise() -> None:
    runs = {"linear": row(1.0), "softmax": row(0.5), "linear-seed1": row(2.0)}
    of_time = {name: {**run, "equal_time": run} for name, run in runs.items()}
    merged = merge_seeds(of_time)
    assert list(merged) == ["linear", "softmax"]
    for each in (merged["linear"], merged["linear"]["equal_time"]):
        assert each["metrics"] == {"loss": 1.5, "images": 9}
        assert each["errors"] == {"loss": pytest.approx(1.0), "images": 0}
        assert (each["steps"], each["seeds"]) == (7, 2)
    assert with_noise(merged["linear"], "loss") == "1.50 \u00b1 1.00"


def test_one_seed_has_no_noise_and_keeps_its_numbers() -> None:
    merged = merge_seeds({"linear": row(0.1)})["linear"]
    assert merged["metrics"] == row(0.1)["metrics"]
    assert with_noise(merged, "loss") == "0.100"
    assert noise([1.0]) is None and noise([1.0, 1.0, 1.0]) == 0.0
    assert math.isnan(noise([1.0, math.inf]) or 0) and math.isnan(noise([math.nan, 1.0]) or 0)


def test_what_was_not_finite_once_is_no_mean() -> None:
    merged = merge_seeds({"linear": row(None), "linear-seed1": row(1.0)})["linear"]
    assert merged["metrics"]["loss"] is None and merged["errors"]["loss"] is None
    assert with_noise(merged, "loss") == "-"
    assert read_figures({"linear": merged}, "loss", "loss") == {"linear/loss": None}


FINITE = st.floats(-1e6, 1e6)
LOSSES = st.lists(FINITE, min_size=1, max_size=3)


def read_losses(**losses: list[float]) -> dict[str, float | None]:
    """The figures of trainings whose seeds have these losses."""
    rows = {
        f"{name}-seed{seed}" if seed else name: row(loss)
        for name, each in losses.items()
        for seed, loss in enumerate(each)
    }
    return read_figures(merge_seeds(rows), "loss", "loss")


@given(LOSSES, LOSSES)
def test_means_are_told_apart_beyond_two_standard_errors_of_their_difference(
    first: list[float], second: list[float]
) -> None:
    figures = read_losses(a=first, b=second)
    words = compare_rows(figures, "loss", "b").removesuffix(" for a")

    errors = [2 * stdev(x) / math.sqrt(len(x)) if len(x) > 1 else None for x in (first, second)]
    assert [figures.get(error_name(f"{x}/loss")) for x in "ab"] == errors
    if errors[0] is None or errors[1] is None:
        assert words == "one seed"
    elif abs(mean(first) - mean(second)) <= math.hypot(errors[0], errors[1]):
        assert words == "within noise"
    else:
        assert words == ("more" if mean(first) > mean(second) else "less")
    assert describe_difference(figures, "a/loss", "b/loss") == IN_WORDS[words]


@given(FINITE, st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_wider_spread_never_tells_more_apart(
    difference: float, narrow: float, more: float
) -> None:
    wide, here = judge_difference(difference, narrow + more), judge_difference(difference, narrow)
    assert wide in ("within noise", here)
    opposite = {"less": "more", "more": "less"}
    assert judge_difference(-difference, narrow) == opposite.get(here, here)
    assert judge_difference(difference, None) == "one seed"
    for odd in ((math.nan, narrow), (difference, math.nan)):
        assert judge_difference(*odd) == "within noise"


def test_each_row_is_named_once_beside_the_baseline() -> None:
    figures = read_losses(low=[1, 1.1], base=[2, 2.1], near=[2.05, 2.1], high=[9, 9.1], one=[3])
    words = compare_rows(figures, "loss", "base")
    assert words == "less for low; within noise for near; more for high; one seed for one"
    assert compare_rows(figures, "loss", "absent") == compare_rows(figures, "other", "base") == ""
    assert describe_difference(figures, "low/loss", "absent/loss") == "not measured"
    assert figure_with_noise(figures, "low/loss") == "1.05 \u00b1 0.10"
    assert figure_with_noise(figures, "one/loss") == "3.00"


@given(st.floats(1e-4, 1e6), st.floats(1e-9, 1e6))
def test_an_error_has_the_decimals_of_its_value_and_is_never_shown_as_nothing(
    value: float, error: float
) -> None:
    figures = {"a/loss": value, error_name("a/loss"): error}
    shown, noise_shown = figure_with_noise(figures, "a/loss").split(" \u00b1 ")
    places = len(shown.partition(".")[2])
    assert float(noise_shown.replace(",", "")) > 0
    assert error < 10**-places or len(noise_shown.partition(".")[2]) == places


def test_a_scale_is_that_of_means_and_errors() -> None:
    rows = merge_seeds({"a": row(0.25), "a-seed1": row(0.5)})
    whole, percent = (read_figures(rows, "loss", "per", scale=x) for x in (1, 100))
    assert percent == {name: pytest.approx(100 * (value or 0)) for name, value in whole.items()}
