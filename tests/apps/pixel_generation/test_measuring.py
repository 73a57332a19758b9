"""A method is timed for one image and for its best batch; what cannot run says why instead."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from linattn_lab.throughput import Throughput
from linattn_models import AutoregressiveTransformer, TransformerConfig
from pixels import measuring
from pixels.measuring import Outcome, Speed
from pixels.methods import LINEAR, LSH_4, SOFTMAX, STATEFUL_SOFTMAX, Method, Models
from pixels.tables import benchmark_report, benchmark_table

outcome_of = partial(measuring.outcome_of, positions=2, largest=8, most_seconds=20)


@pytest.fixture(scope="module")
def models() -> Models:
    config = TransformerConfig(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8)
    return {
        "linear": AutoregressiveTransformer(config, 2, 4).eval(),
        "softmax": AutoregressiveTransformer(config.with_attention("softmax"), 2, 4).eval(),
    }


def fake_time(models: Models, method: Method, batch: int, positions: int | None) -> Throughput:
    """Images/s that grow with the batch up to four images."""
    rate = float(min(batch, 4))
    return Throughput(rate, 1 / rate, [(0, 0.1), (3, 0.3)], 100, estimated=True, compiled=False)


def test_the_best_batch_is_measured_beside_one_image(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "time_method", fake_time)
    outcome = outcome_of(models, LINEAR)
    assert outcome.one is not None and outcome.many is not None
    assert (outcome.one.batch, outcome.many.batch, outcome.largest) == (1, 4, 8)
    assert [speed.batch for speed in outcome.speeds] == [1, 4]
    assert outcome.failure is None
    fixed = outcome_of(models, LINEAR, batch=3)
    assert [speed.batch for speed in fixed.speeds] == [1, 3]
    assert (fixed.largest, fixed.bounded_by) == (3, None)
    assert [s.batch for s in outcome_of(models, LINEAR, batch=1).speeds] == [1]


def test_a_real_search_ends(models: Models) -> None:
    outcome = outcome_of(models, STATEFUL_SOFTMAX)
    assert outcome.many is not None and 1 <= outcome.many.batch <= 8
    assert outcome.many.state_bytes_per_image == 2 * 4 * 4 * 4


@pytest.mark.parametrize(
    "error", [ValueError("no such\nthing."), RuntimeError("can't allocate memory: 9 GB")]
)
def test_what_cannot_run_says_why(
    models: Models, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*arguments: Any, **named: Any) -> Throughput:
        raise error

    monkeypatch.setattr(measuring, "time_method", refuse)
    outcome = outcome_of(models, LINEAR)
    assert outcome.failure == str(error).replace("\n", " ") and outcome.speeds == []


def test_a_fault_is_not_hidden(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> Throughput:
        raise RuntimeError("a fault")

    monkeypatch.setattr(measuring, "time_method", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        outcome_of(models, LINEAR)


def speed(method: str, batch: int, rate: float, estimated: bool = True) -> Speed:
    return Speed(method, batch, rate, 1 / rate, 80, estimated=estimated, compiled=False)


def test_the_table_has_gains_and_dashes() -> None:
    one, many = speed("linear", 1, 4.0, False), speed("linear", 1_024, 50.0)
    slow = speed("softmax", 1, 0.5)
    outcomes = [
        Outcome(LINEAR, one, many, bounded_by="the largest batch allowed is 1,024"),
        Outcome(SOFTMAX, slow, slow),
        Outcome(LSH_4, failure="it did not fit."),
    ]
    assert benchmark_table(outcomes, {"linear": 0.644}) == (
        "| attention | bits/dim | images/s | batch |  gain | s for one image |  gain "
        "| bytes of state per image |\n"
        "| --------- | -------: | -------: | ----: | ----: | --------------: | ----: "
        "| -----------------------: |\n"
        "| linear    |    0.644 |    ~50.0 | 1,024 |  100x |           0.250 | 8.00x "
        "|                       80 |\n"
        "| softmax   |        - |   ~0.500 |     1 | 1.00x |           ~2.00 | 1.00x "
        "|                       80 |\n"
        "| lsh-4     |        - |        - |     - |     - |               - |     - "
        "|                        - |\n"
    )
    config = TransformerConfig(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8)
    where = {"torch": "2", "device": "cpu", "threads": 1, "steps_by": "reference"}
    record = {
        "shape": "mnist",
        "model": {"transformer": config.to_dict(), "max_length": 784},
        "environment": where,
        "bits_per_dim": {},
    }
    text = benchmark_report(record, outcomes, searched=True)
    said = "linear: no larger batch was tried, since the largest batch allowed is 1,024."
    assert said in text.splitlines()
    assert "lsh-4: -, since it did not fit." in text.splitlines()
    assert "until two in a row gained less than 5% each" in text
    assert "| lsh-4            |    0.676 |" in text  # the paper's
    assert "batch: the best" not in benchmark_report(record, outcomes, searched=False)
