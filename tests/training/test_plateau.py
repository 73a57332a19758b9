"""The schedule plateau: the rate drops when the validation error has stopped falling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models.training.schedule import learning_rate
from tests.training.toy import (
    Crash,
    CrashingData,
    logged,
    same_weights,
    toy_config,
    toy_run,
)

PLATEAU: dict[str, Any] = {"schedule": "plateau", "patience": 1, "drop_factor": 0.5}
# At which the error rises at times.
UNSTEADY = {**PLATEAU, "eval_every": 1, "learning_rate": 0.3, "optimizer": "adam"}


def rates(errors: Sequence[float | None], **changes: Any) -> list[float]:
    """The rate, as a share of the highest, after each of the evaluations, one after each update."""
    config = toy_config(**{**PLATEAU, "eval_every": 1, **changes})
    measured = list(enumerate(errors, start=1))
    steps = range(len(errors) + 1)
    return [learning_rate(config, step, measured) / config.learning_rate for step in steps]


def assert_rates_follow(lines: Sequence[dict[str, Any]], patience: int) -> None:
    """The logged rates halve after `patience` errors that are no better than the best; one does."""
    used = [line["learning_rate"] for line in lines if line["split"] == "train"]
    errors = [line["error"] for line in lines if line["split"] == "eval"]
    best, waited, dropped = math.inf, 0, []
    for error in errors:
        waited = 0 if error < best else waited + 1
        best = min(best, error)
        dropped.append(waited == patience)
        waited %= patience
    assert any(dropped[:-1])
    assert [later == one / 2 for one, later in pairwise(used)] == dropped[:-1]


@pytest.mark.parametrize(
    ("errors", "patience", "expected"),
    [
        ([3, 2, 1], 1, [1, 1, 1, 1]),
        ([3, 3, 2, 2, 2], 1, [1, 1, 0.5, 0.5, 0.25, 0.125]),  # equal is no better
        ([3, 4, 2, 3, 4], 2, [1, 1, 1, 1, 1, 0.5]),
        ([1, None, 2, 0.5], 2, [1, 1, 1, 0.5, 0.5]),  # an infinite error is no better
        ([2, 3, 2.5, 1.9], 1, [1, 1, 0.5, 0.25, 0.25]),  # the best counts, not the one before
    ],
)
def test_the_rate_drops_where_errors_stop_falling(
    errors: list[float | None], patience: int, expected: list[float]
) -> None:
    assert rates(errors, patience=patience) == expected


def test_a_run_logs_the_rates_that_its_errors_ask_for(out: Path) -> None:
    toy_run(out, **UNSTEADY)
    assert_rates_follow(logged(out), patience=1)


@pytest.mark.parametrize("crash_at", [1, 5, 9])
def test_a_stopped_run_goes_on_with_the_same_rates(
    out: Path, tmp_path: Path, crash_at: int
) -> None:
    toy_run(tmp_path / "whole", **UNSTEADY)
    with pytest.raises(Crash):
        toy_run(out, data=CrashingData(crash_at), checkpoint_every=2, **UNSTEADY)
    toy_run(out, resume=True, checkpoint_every=2, **UNSTEADY)
    assert logged(out) == logged(tmp_path / "whole")
    assert same_weights(out, tmp_path / "whole")


def test_an_error_to_follow_is_needed(out: Path) -> None:
    with pytest.raises(ValueError, match="plateau"):
        toy_run(out, evaluate=None, **UNSTEADY)
    assert not out.exists()
    with pytest.raises(ValueError, match="metrics"):
        toy_run(out, evaluate=lambda model: {"loss": torch.ones(()).item()}, **UNSTEADY)
