"""Every method is timed on its own model, by the backend it names; the line below says so."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from linattn_core import backends
from linattn_models import AutoregressiveTransformer, TransformerConfig
from linattn_models.attention import LinearMixer
from pixels.measuring import Speed, measure
from pixels.methods import (
    LINEAR,
    Method,
    MethodName,
    Models,
    methods_named,
    stepping_backends,
    time_method,
)
from pixels.presets import Attention
from pixels.tables import how_it_ran

CPU = torch.device("cpu")
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


@pytest.mark.parametrize(
    ("steps_by", "compiled", "said"),
    [
        ("reference", False, "linear attention in plain torch."),
        ("cpu", False, "linear attention by the backend cpu."),
        ("cpu", True, "cpu, which also compiled the decoder of: linear."),
    ],
)
def test_it_says_what_was_native(steps_by: str, compiled: bool, said: str) -> None:
    speeds = [replace(SPEED, compiled=compiled)] * 2

    line = how_it_ran({**WHERE, "steps_by": steps_by}, speeds)

    assert line.startswith("torch 2.13.0, cpu, 2 threads; ") and line.endswith(said)


def test_every_method_is_measured_at_every_batch(models: Models) -> None:
    names = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
    speeds = measure(models, [1, 3], 2, methods_named(names, CPU))
    assert [(s.method, s.batch) for s in speeds] == [(m, b) for b in (1, 3) for m in names]
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
    methods = methods_named(["linear-eager", "linear", "linear"], CPU)
    accepting = stepping_backends(CPU)
    assert "reference" in accepting and set(accepting) <= set(backends())
    assert [method.backend for method in methods] == [*accepting, None]
    assert methods[-1] == LINEAR
    assert f"linear (eager, {accepting[0]})" == methods[0].name
    assert methods_named(get_args(MethodName), CPU)[0] == LINEAR


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
    with pytest.raises(ValueError, match="got 'none'"):
        time_method(models, Method("any", "linear", "stateful", "none"), 1, positions=2)


def test_rerunning_is_sampled_even_where_all_is_asked_for(models: Models) -> None:
    long = AutoregressiveTransformer(models["lsh-1"].config, 2, 70).eval()
    (speed,) = measure({"lsh-1": long}, [1], None, methods_named(["lsh-1"], CPU))
    assert speed.estimated
