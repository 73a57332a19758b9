"""The README's numbers are those of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.report import document
from benchmarks.report.series import by_series, crossing, points
from replication.collect import best, stored
from replication.report.speedups import (
    ON,
    OPERATOR,
    RIVALS,
    SHAPES,
    SPEEDS,
    gains,
    paper_gain,
    times,
)

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
PEERS = {
    "attention, 16,384 positions": (
        "operator/rivals/forward", "linear (cpu): times as fast as fast-transformers"),
    "the same with gradients": (
        "operator/rivals/forward-and-backward", "linear (cpu): times as fast as fast-transformers"),
    "a layer of LSH attention, one round": (
        "lsh/layer", "lsh-1 layer: times as fast as transformers' Reformer layer"),
    "generating one image of the paper's MNIST model, weights in float32": (
        "generation/images/one-image",
        "linear (compiled, float32): times as fast as fast-transformers"),
    "the same, weights in 8 bits": (
        "generation/images/one-image",
        "linear (compiled, int8): times as fast as fast-transformers"),
    "the same, weights in float32": (
        "generation/images/one-image",
        "linear (compiled, float32): times as fast as stateful softmax"),
    "a step of 100 images, weights in 16 bits": (
        "decoding/compiled-steps/batch-100",
        "linear (compiled, bfloat16): times as fast as fast-transformers"),
}  # fmt: skip


def measured(case: str) -> document.CaseResult:
    results = document.read(ROOT / "docs" / "results", case.partition("/")[0], "cpu").results
    return next(result for result in results if result.case.name == case)


def medians(case: str) -> dict[str, float]:
    return {x.target.shows: x.value.median for x in measured(case).targets if x.value is not None}


def cell(row: str) -> str:
    """The number in the row of the table that begins with these words."""
    found = re.search(rf"\| {re.escape(row)} \|[^|]*\| ([\d.]+) \|", README)
    assert found, row
    return found[1]


@pytest.mark.parametrize("row", PEERS)
def test_the_table_holds_what_was_measured(row: str) -> None:
    case, target = PEERS[row]
    assert cell(row) == f"{medians(case)[target]:.3g}"


@pytest.mark.parametrize(
    "case", ["lengths/8192", "crossover/d32-h1/64", *(case for case, _ in PEERS.values())]
)
def test_all_was_measured_on_the_machine_that_is_named(case: str) -> None:
    assert "on two cores of an AMD EPYC with AVX-512" in README
    entries = document.read(ROOT / "docs" / "results", case.partition("/")[0], "cpu").entries
    machine = next(run for run, result in entries if result.case.name == case).machine
    assert re.match(r"AMD EPYC .*AVX512.*, 2 cores", machine.hardware)
    assert "kernels for avx512bf16" in machine.backends


def test_the_row_of_softmax_is_of_the_table_of_lengths() -> None:
    length = measured("lengths/8192")
    ours, theirs = (length.method(name).seconds for name in ("linear (cpu)", "softmax SDPA"))
    assert ours
    assert theirs
    assert cell("attention and gradients, 8,192 positions") == f"{theirs / ours:.3g}"


def test_without_the_compiled_decoder_one_image_gains_nothing() -> None:
    image = measured("generation/images/one-image")
    eager, softmax = (image.method(x).seconds for x in ("linear (eager)", "stateful softmax"))
    assert eager
    assert softmax
    assert f"linattn without its compiled decoder: {softmax / eager:.1f})" in README


def test_the_targets_that_were_missed() -> None:
    forward, both = (
        measured(f"operator/rivals/{x}").method("linear (cpu)")
        for x in ("forward", "forward-and-backward")
    )
    assert forward.share_of_fma
    assert forward.share_of_copy
    assert both.share_of_fma
    shares = (forward.share_of_fma, both.share_of_fma, forward.share_of_copy)
    work, with_gradients, copied = (f"{share.median:.0%}".replace("%", " %") for share in shares)
    wanted = next(x.target.bound for x in measured("operator/rivals/forward").targets
                  if x.target.figure == "fma")  # fmt: skip
    assert f"reach {work} of the multiply-adds" in README
    assert f"({with_gradients} with the gradients) and {copied} of its copy bandwidth" in README
    assert f"the target was {wanted:.0%}".replace("%", " %") in README


def test_the_crossover_is_that_of_the_results() -> None:
    results = document.read(ROOT / "docs" / "results", "crossover", "cpu").results
    summarized = by_series(results, summarized=True)

    def crossover(name: str) -> str:
        linear, softmax = (
            dict(points(summarized[name], method, lambda x: x.seconds))
            for method in ("linear (cpu)", "softmax SDPA")
        )
        return crossing([(n, softmax[n] / linear[n]) for n in sorted(linear.keys() & softmax)])

    largest = crossover("D=M=128, H=1").removeprefix("~")
    assert f"from about {largest} positions on with one head of 128" in README
    least = crossover("D=M=32, H=64").removeprefix("below ")
    assert f"from fewer than {least} with 64 heads of 32" in README


def test_the_speed_ups_of_generation_are_those_of_the_report() -> None:
    papers = [paper_gain(shape, "stateful-softmax", which) for shape in SHAPES for which in SPEEDS]
    assert f"the paper itself has {times(min(papers))} to {times(max(papers))}" in README
    rerunning = (times(paper_gain(shape, "softmax", "best")) for shape in SHAPES)
    assert f"{' and '.join(rerunning)}, are over softmax attention" in README
    records = best(stored())
    over = {
        rival: " and ".join(
            times(gains(records, x, rival, "best", "gpu")[OPERATOR]) for x in SHAPES
        )
        for rival in RIVALS
    }
    words = f"gain {over['softmax']} here, and {over['stateful-softmax']} over a cache"
    assert words in README
    one = {
        rival: " and ".join(times(gains(records, x, rival, "one", "gpu")[OPERATOR]) for x in SHAPES)
        for rival in RIVALS
    }
    words = f"alone gains {one['softmax']} there, and {one['stateful-softmax']} over a cache"
    assert words in README
    assert all(ON["gpu"].format(shape) in README for shape in SHAPES)
