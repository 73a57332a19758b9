"""Images by every way to generate: which batches are measured, and what is known of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cases import images
from benchmarks.cases.models import Task
from benchmarks.runner import run_case
from linattn_lab.timing import NotMeasured
from linattn_models import AutoregressiveTransformer, CompiledDecoder
from tests.benchmarks.helpers import LIMITS, QUICK


def test_every_way_is_right_and_measured_at_its_best_batch() -> None:
    result = run_case(images.images_case("mnist", None, "cpu"), QUICK, LIMITS)
    assert {method.name: method.status for method in result.methods} == dict.fromkeys(
        images.WAYS, "measured"
    )
    for method in result.methods:
        assert method.units <= method.figures["largest-batch"] <= 2
        kept = images.WAYS[method.name].method == "stateful"
        assert (method.figures["state-bytes"] > 0) == kept


def test_batches_are_measured_as_far_as_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    way, task, taken = images.WAYS["linear"], Task(length=4), dict[int, float]()
    images.make_affordable(way, task, QUICK, 1, taken)
    assert taken.keys() == {1}
    with pytest.raises(NotMeasured, match="expected to take"):
        images.make_affordable(way, task, QUICK, 10**9, taken)
    assert taken.keys() == {1}


@pytest.mark.parametrize("name", ["softmax", "lsh-1", "lsh-4"])
def test_a_wrong_prediction_of_a_prefix_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    task, way = Task(2, 2, 2, 8, 32, length=80), images.WAYS[name]
    check = images.check_way.__wrapped__
    assert check(way, task) is None
    right, off = AutoregressiveTransformer.predict_next, iter((0.5, 0.0))
    monkeypatch.setattr(
        AutoregressiveTransformer, "predict_next", lambda self, x: right(self, x) + next(off)
    )
    assert check(way, task) is not None


def test_the_compiled_way_is_checked_by_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    task, compiled = Task(length=4).for_settings(QUICK), images.WAYS["linear-compiled"]
    check = images.check_way.__wrapped__
    assert check(compiled, task) is None
    right = CompiledDecoder.step_and_sample

    def step(self: CompiledDecoder, *arguments: Any, **settings: Any) -> Any:
        parameters, *rest = right(self, *arguments, **settings)
        return parameters + 0.5, *rest

    monkeypatch.setattr(CompiledDecoder, "step_and_sample", step)
    assert check(compiled, task) is not None
    assert check(images.WAYS["linear"], task) is None
