"""Every method is timed on its own model, by its backend; what cannot run says why instead."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, get_args

import pytest
import torch

from linattn_core import backends
from linattn_lab.throughput import Throughput
from linattn_models import AutoregressiveTransformer, TransformerConfig
from linattn_models.attention import LinearMixer
from pixels import methods
from pixels.methods import (
    LINEAR,
    LSH_1,
    LSH_4,
    SOFTMAX,
    Method,
    MethodName,
    Models,
    Outcome,
    Speed,
    select_methods,
    stepping_backends,
    time_method,
)
from pixels.presets import Attention
from pixels.tables import benchmark_report, benchmark_table
from tests.apps.app_scripts import cells

CPU = torch.device("cpu")
measure_outcome = partial(methods.measure_outcome, positions=2, largest=8, most_seconds=math.inf)
SPEED = Speed("linear", 1, 2.0, 0.5, 100, estimated=False, compiled=True)
WHERE = {"torch": "2.13.0", "device": "cpu", "threads": 2}


@pytest.fixture(scope="module")
def models() -> Models:
    """One of each attention."""
    config = TransformerConfig(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8)
    return {
        name: AutoregressiveTransformer(config.with_attention(name), 2, 4).eval()
        for name in get_args(Attention)
    }


def test_every_method_is_measured_alone_and_side_by_side(models: Models) -> None:
    names = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
    outcomes = [measure_outcome(models, x, batch=3) for x in select_methods(names, CPU)]
    speeds = [speed for outcome in outcomes for speed in outcome.speeds]
    assert [(s.method, s.batch) for s in speeds] == [(m, b) for m in names for b in (1, 3)]
    assert all(speed.images_per_second > 0 and speed.estimated for speed in speeds)
    kept = {speed.method: speed.state_bytes_per_image for speed in speeds}
    # S is 4x4 and z is 4; keys and values are 4 each for 4 positions; rerunning keeps nothing.
    assert kept == {
        "linear": 20 * 4,
        "stateful-softmax": 32 * 4,
        "softmax": 0,
        "lsh-1": 0,
        "lsh-4": 0,
    }


def test_linear_eager_is_every_backend_that_steps_here() -> None:
    chosen = select_methods(["linear-eager", "linear", "linear"], CPU)
    accepting = stepping_backends(CPU)
    assert "reference" in accepting and set(accepting) <= set(backends())
    assert [method.backend for method in chosen] == [*accepting, None]
    assert chosen[-1] == LINEAR
    assert f"linear (eager, {accepting[0]})" == chosen[0].name
    assert select_methods(get_args(MethodName), CPU)[0] == LINEAR


def test_an_eager_method_steps_by_the_backend_it_names(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    step = LinearMixer.attend_next

    def watched(mixer: LinearMixer, *arguments: object) -> object:
        seen.add(mixer.backend)
        return step(mixer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LinearMixer, "attend_next", watched)
    method = Method("any", "linear", "stateful", "reference")
    timed = time_method(models, method, 2, positions=2)
    assert seen == {"reference"} and not timed.compiled
    mixers = [m for m in models["linear"].modules() if isinstance(m, LinearMixer)]
    assert [mixer.backend for mixer in mixers] == ["auto"]


def test_a_backend_that_is_not_there_is_refused(models: Models) -> None:
    with pytest.raises(ValueError, match="none"):
        time_method(models, Method("any", "linear", "stateful", "none"), 1, positions=2)


def test_rerunning_is_sampled_even_where_all_is_asked_for(models: Models) -> None:
    long = AutoregressiveTransformer(models["lsh-1"].config, 2, 70).eval()
    assert time_method({"lsh-1": long}, LSH_1, 1, positions=None).estimated


def fake_time(models: Models, method: Method, batch: int, positions: int | None) -> Throughput:
    """Images/s that grow with the batch up to four images."""
    rate = float(min(batch, 4))
    return Throughput(rate, 1 / rate, [(0, 0.1), (3, 0.3)], 100, estimated=True, compiled=False)


def test_the_best_batch_is_measured_beside_one_image(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "time_method", fake_time)
    outcome = measure_outcome(models, LINEAR)
    assert outcome.one is not None and outcome.many is not None
    assert (outcome.one.batch, outcome.many.batch, outcome.largest) == (1, 4, 8)
    assert [speed.batch for speed in outcome.speeds] == [1, 4]
    assert outcome.failure is None
    fixed = measure_outcome(models, LINEAR, batch=3)
    assert [speed.batch for speed in fixed.speeds] == [1, 3]
    assert (fixed.largest, fixed.bounded_by) == (3, None)
    assert [s.batch for s in measure_outcome(models, LINEAR, batch=1).speeds] == [1]


@pytest.mark.parametrize(
    "error", [ValueError("no such\nthing."), RuntimeError("can't allocate memory: 9 GB")]
)
def test_what_cannot_run_says_why(
    models: Models, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*arguments: Any, **named: Any) -> Throughput:
        raise error

    monkeypatch.setattr(methods, "time_method", refuse)
    outcome = measure_outcome(models, LINEAR)
    assert outcome.failure == str(error).replace("\n", " ") and outcome.speeds == []


def test_a_fault_is_not_hidden(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> Throughput:
        raise RuntimeError("a fault")

    monkeypatch.setattr(methods, "time_method", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        measure_outcome(models, LINEAR)


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
    rows = cells(benchmark_table(outcomes, {"linear": 0.644}))
    assert rows == {
        "linear": ["0.644", "~50.0", "1,024", "100x", "0.250", "8.00x", "80"],
        "softmax": ["-", "~0.500", "1", "1.00x", "~2.00", "1.00x", "80"],
        "lsh-4": ["-"] * 7,
    }
    config = TransformerConfig(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8)
    where = {"torch": "2", "device": "cpu", "threads": 1, "steps_by": "reference"}
    record = {
        "shape": "mnist",
        "model": {"transformer": config.to_dict(), "max_length": 784},
        "environment": where,
        "bits_per_dim": {},
    }
    text = benchmark_report(record, outcomes, searched=True)
    assert "linear: no larger batch was tried" in text and "lsh-4: -, since it did not fit." in text
    assert text.count("lsh-4") == 3  # ours, the reason, the paper's
    assert "linear attention in plain torch" in text
