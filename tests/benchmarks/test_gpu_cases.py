"""The GPU's cases: sizes and targets as promised, every entry right on a CPU in its stead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    LINEAR,
    LINEAR_CUDA,
    MATERIALISED,
    SDPA,
)
from benchmarks.gpu import cases, decoding, ladder, operators
from benchmarks.gpu.operators import LENGTHS, entry, forced_schedule, many_heads, scaled
from benchmarks.registry import Absent, Method, NotMeasured, Settings, Target
from linattn_core import linear_attention

SETTINGS = Settings(quick=True, peers=True, device="cpu")


def _targets(name: str) -> tuple[Target, ...]:
    (case,) = (case for case in cases.registry if case.name == name)
    return case.targets


def test_every_length_has_the_same_positions() -> None:
    assert LENGTHS == (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
    for length in LENGTHS:
        problem = many_heads(length)
        assert problem.batch * problem.length == 65_536
        assert problem.batch * problem.heads >= 64


def test_bytes_count_inputs_and_outputs_once() -> None:
    problem = many_heads(2_048)
    numbers = 65_536 * 64 * 64
    assert problem.traffic(backward=False) == 4 * 2 * numbers
    assert problem.traffic(backward=True) == 12 * 2 * numbers
    assert many_heads(2_048, dtype=torch.float32).traffic(backward=False) == 4 * 4 * numbers


@pytest.mark.parametrize(("direction", "share"), [("forward", 0.7), ("forward-and-backward", 0.5)])
def test_the_share_of_the_copy_bandwidth_is_promised_from_2048_on(
    direction: str, share: float
) -> None:
    for length in LENGTHS:
        (case,) = cases.registry.matching(f"attention/length/{direction}/{length}")
        bounds = [target.at_least for target in case.targets if target.of_copy]
        assert bounds == ([share] if length >= 2_048 else [])


def test_rivals_are_promised_to_be_slower() -> None:
    for length in LENGTHS:
        found = {
            (t.numerator, t.at_least)
            for t in cases.registry.matching(f"attention/length/forward/{length}")[0].targets
            if t.denominator == LINEAR_CUDA
        }
        softmax = (SDPA, 1 / 1.1 if length == 512 else 1)
        assert found == {(FLASH_LINEAR_ATTENTION, 1), (FAST_TRANSFORMERS, 10), softmax}


def test_time_and_memory_against_the_length_are_those_of_a_sample() -> None:
    (case,) = cases.registry.matching("attention/length/forward/512")
    assert case.unit == "sample"
    assert {made.units for made in case.setup(SETTINGS) if isinstance(made, Method)} == {1}
    assert case.done is not None
    sizes = many_heads(512)
    whole = operators.per_sample(Method("a", check=lambda: None, run=list), sizes.batch)
    assert isinstance(whole, Method)
    assert whole.units == 128


def test_few_heads_keep_their_rate() -> None:
    (target,) = _targets("attention/few-heads/forward")
    assert target.at_least == 0.6
    # Seconds a position of many heads over those of few: the rate of few over that of many.
    assert target.numerator.endswith("64 heads")
    assert target.denominator is not None
    assert target.denominator.endswith("8 heads")


def test_decoding_promises_images_a_second() -> None:
    rate, *over = _targets("decoding/batch-10000")
    assert (rate.numerator, rate.denominator) == (decoding.compiled_name("bfloat16"), None)
    assert rate.at_most == 1 / 5_000
    assert [target.at_least for target in over] == [50, 50]
    assert {target.at_most for target in _targets("decoding/one-image")} == {0.2}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [LINEAR, SDPA, FAST_TRANSFORMERS, MATERIALISED, "lsh-1", "lsh-4"])
def test_an_entry_passes_its_check_where_the_cpu_stands_in(
    name: str, dtype: torch.dtype, backward: bool
) -> None:
    made = entry(name, many_heads(512, dtype=dtype), backward, SETTINGS)
    if isinstance(made, Absent) and name == FAST_TRANSFORMERS:
        pytest.skip(made.reason)
    assert isinstance(made, Method)
    assert made.check() is None
    assert made.measure is not None
    assert made.measure() > 0


def test_a_peer_of_one_dtype_says_which() -> None:
    made = entry(FAST_TRANSFORMERS, many_heads(512), False, SETTINGS)
    if isinstance(made, Absent):
        pytest.skip(made.reason)
    assert made.note == "float32"
    assert made.traffic == scaled(many_heads(512, dtype=torch.float32), SETTINGS).traffic(False)


def test_the_fastest_softmax_is_taken(new_instrument: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on = new_instrument()
    problem = scaled(many_heads(512), SETTINGS)
    seconds = {"FLASH_ATTENTION": 3.0, "CUDNN_ATTENTION": None, "EFFICIENT_ATTENTION": 2.0}

    def softmax(backend: SDPBackend, *_: Any) -> Method:
        def run() -> None:
            if seconds[backend.name] is None:
                raise RuntimeError("No available kernel")

        run.seconds = seconds[backend.name]  # type: ignore[attr-defined]
        return Method(SDPA, check=lambda: None, run=run)

    monkeypatch.setattr(operators, "_softmax", softmax)
    monkeypatch.setattr(on, "seconds", lambda run: run.seconds)
    assert operators._fastest_softmax(problem, False, on).note == "efficient"
    seconds.update(dict.fromkeys(seconds))
    with pytest.raises(NotMeasured, match="torch has none of"):
        operators._fastest_softmax(problem, False, on)


def test_a_schedule_is_forced_for_one_call() -> None:
    backend = SimpleNamespace(schedule=None)
    with forced_schedule(backend, (4, True)):
        assert backend.schedule == (4, True)
    assert backend.schedule is None
    with pytest.raises(NotMeasured), forced_schedule(object(), (4, True)):
        pass


def test_a_missing_backend_is_a_row_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators.attention.__globals__["linattn_core"], "backends", lambda: ())
    for name in ("few-heads/forward", "schedules/8-heads"):
        case = cases.registry.matching(f"attention/{name}")[0]
        for made in case.setup(SETTINGS):
            assert isinstance(made, Absent)
            assert "no live backend 'cuda'" in made.reason


class _Rung:
    def attention(self, q: Any, k: Any, v: Any, *, feature_map: str, eps: float) -> Any:
        return linear_attention(q, k, v, is_causal=True, feature_map=feature_map, eps=eps)


def test_prototypes_are_measured_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(LADDER={"paper": _Rung(), "chunked": _Rung()})
    monkeypatch.setattr(ladder.importlib, "import_module", lambda name: module)
    made = cases.registry.matching("attention/prototypes/bfloat16")[0].setup(SETTINGS)
    assert [each.name for each in made] == ["paper", "chunked", LINEAR_CUDA]
    paper = made[0]
    assert isinstance(paper, Method)
    assert paper.check() is None
    assert paper.peak is None


def test_missing_prototypes_are_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder.importlib, "import_module", lambda name: SimpleNamespace())
    made = cases.registry.matching("attention/prototypes/float32")[0].setup(SETTINGS)
    assert isinstance(made[0], Absent)
    assert "has no ladder here" in made[0].reason


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({1: 1, 2: 2, 4: 4, 8: 8}, 8),
        ({1: 1, 2: 2, 4: 1.9, 8: 9}, 2),
        ({1: 1, 2: 2, 4: None}, 2),
        ({1: 3, 2: 3.01}, 1),
    ],
)
def test_the_best_batch_is_where_doubling_stops_to_pay(
    rates: dict[int, float | None], best: int
) -> None:
    def rate(batch: int) -> float:
        found = rates[batch]
        if found is None:
            raise NotMeasured("does not fit")
        return found

    assert decoding.best_batch(rate, smallest=1, largest=8) == best


def test_nothing_fits(new_instrument: Any) -> None:
    def rate(_: int) -> float:
        raise NotMeasured("does not fit")

    with pytest.raises(NotMeasured):
        decoding.best_batch(rate, smallest=1, largest=8)


def test_decoders_are_right_where_the_cpu_stands_in() -> None:
    for made in cases.registry.matching("decoding/one-image")[0].setup(SETTINGS):
        if isinstance(made, Method):
            assert made.check() is None


def test_the_rivals_batch_is_named() -> None:
    made = {m.name: m for m in cases.registry.matching("decoding/batch-10000")[0].setup(SETTINGS)}
    for dtype in decoding.DTYPES:
        softmax = made[decoding.softmax_name(dtype)]
        assert isinstance(softmax, Method)
        assert softmax.note.startswith("batch ")
        assert softmax.estimated
        assert softmax.check() is None
