"""Images by every way to generate: which batches are measured, and what is known of them."""

from __future__ import annotations

from benchmarks.cases import images
from benchmarks.runner import run_case
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
