"""Seeds of one training: runs, means, noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from linattn_lab.seeds import (
    base_name,
    describe_difference,
    merge_seeds,
    noise,
    repeat,
    with_noise,
)
from linattn_lab.tables import figure
from linattn_lab.trainings import Variant
from linattn_models.training import TrainingFlags

ONE = Variant(
    "linear",
    TrainingFlags(steps=7, batch_size=2, seed=5),
    lambda flags, out, resume: None,
    {"attention": "x"},
)


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
    assert with_noise(merged["linear"], "loss", figure) == "1.50 \u00b1 1.00"


def test_one_seed_has_no_noise_and_keeps_its_numbers() -> None:
    merged = merge_seeds({"linear": row(0.1)})["linear"]
    assert merged["metrics"] == row(0.1)["metrics"]
    assert with_noise(merged, "loss", figure) == "0.100"
    assert noise([1.0]) is None and noise([1.0, 1.0, 1.0]) == 0.0


def test_what_was_not_finite_once_is_no_mean() -> None:
    merged = merge_seeds({"linear": row(None), "linear-seed1": row(1.0)})["linear"]
    assert merged["metrics"]["loss"] is None and merged["errors"]["loss"] is None
    assert with_noise(merged, "loss", figure) == "-"
    assert not math.isnan(merged["train_seconds"])


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [([1, 2], [1.5, 2.5], "within"), ([1, 1.1], [2, 2.1], "beyond"), ([1], [2, 3], "one seed")],
)
def test_a_difference_within_two_standard_errors_is_noise(
    first: list[float], second: list[float], words: str
) -> None:
    assert words in describe_difference(first, second)
