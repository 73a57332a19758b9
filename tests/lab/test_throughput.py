"""Throughput: the reported numbers follow from the measured times."""

from __future__ import annotations

import math
from typing import Any

import pytest

from linattn_core import backends
from linattn_lab.throughput import generation_throughput
from linattn_models import MixtureOfLogistics
from tests.models.tiny import MAX_LENGTH, tiny_model


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("method", ["stateful", "rerun"])
def test_whole_sequences_are_timed_position_by_position(attention: str, method: str) -> None:
    model = tiny_model(attention, MixtureOfLogistics(2, 3, 8))
    measured = generation_throughput(model, batch=3, method=method)
    assert [position for position, _ in measured.seconds_per_step] == list(range(MAX_LENGTH))
    total = sum(seconds for _, seconds in measured.seconds_per_step)
    assert math.isclose(measured.seconds_per_sample, total / 3)
    assert math.isclose(measured.samples_per_second, 3 / total)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("method", ["stateful", "rerun"])
def test_some_positions_stand_for_all(attention: str, method: str) -> None:
    measured = generation_throughput(tiny_model(attention), batch=2, method=method, steps=3)
    (first, a), (middle, b), (last, c) = measured.seconds_per_step
    assert (first, middle, last) == (0, 4, 8)
    trapezoids = 4 * (a + b) / 2 + 4 * (b + c) / 2 + (a + c) / 2
    assert math.isclose(2 * measured.seconds_per_sample, trapezoids)
    heads, dim, layers, bytes_each = 2, 4, 2, 8
    numbers = {"linear": dim * dim + dim, "softmax": 2 * MAX_LENGTH * dim}[attention]
    stateful = layers * heads * numbers * bytes_each
    assert measured.state_bytes_per_sample == (stateful if method == "stateful" else 0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"batch": 0}, "batch"),
        ({"length": 10}, "length"),
        ({"length": 10, "steps": 3}, "length"),
        ({"steps": 1}, "steps"),
        ({"method": "state"}, "stateful"),
        ({"method": "rerun", "decoder": "compiled", "steps": 2}, "decoder"),
    ],
)
def test_refuses_what_cannot_be_right(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        generation_throughput(tiny_model(), **{"batch": 1, **fields})


def test_it_says_whether_a_compiled_decoder_stepped() -> None:
    eager = generation_throughput(tiny_model("linear"), batch=1, decoder="eager")
    assert not eager.compiled
    rerun = generation_throughput(tiny_model("linear"), batch=1, method="rerun")
    assert not rerun.compiled


@pytest.mark.skipif(
    "cpu" not in backends(), reason="no backend is installed that compiles decoders"
)
def test_a_compiled_decoder_is_timed_where_asked_for() -> None:
    model = tiny_model("linear").float()
    assert generation_throughput(model, batch=1, decoder="compiled").compiled
