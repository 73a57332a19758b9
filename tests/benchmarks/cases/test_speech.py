"""Recognizers: what represents an epoch, and methods that are right or are told."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import speech
from linattn_models.ctc import CTCTransformer
from tests.benchmarks.helpers import QUICK, make_or_skip

CASES = [case for case in speech.CASES if case.device == "cpu"]


def test_lengths_of_an_epoch_are_800_frames_on_average() -> None:
    batches = speech.spread_lengths(8, 6)
    lengths = [length for batch in batches for length in batch]
    assert lengths == sorted(lengths) and len(lengths) == 48
    assert sum(lengths) / len(lengths) == pytest.approx(800, rel=0.01)
    assert 0.95 * speech.LONGEST < lengths[-1] <= speech.LONGEST


def test_noise_can_be_aligned_and_is_the_same_every_time() -> None:
    first, again = (speech.make_batch((24, 800), "cpu") for _ in range(2))
    assert all(map(torch.equal, first, again))
    frames, lengths, _, phones = first
    assert frames.shape == (2, 800, 40) and (2 * phones <= lengths).all()


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case.name)
def test_methods_are_right_and_can_be_repeated(case: speech.Case) -> None:
    for make in case.setup(QUICK).values():
        made = make_or_skip(make)
        assert made.check() is None
        made.run()
        made.run()


def test_updates_change_the_weights_and_count_utterances() -> None:
    model = speech.build_recognizer("linear", QUICK)
    before = model.output.weight.clone()
    speech.make_update(model, [speech.make_batch((24, 12), "cpu")])()
    assert not torch.equal(model.output.weight, before)
    assert speech.update_method("lstm", [[24, 12], [30]], QUICK).units == 3


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case.name)
def test_a_recognizer_that_is_wrong_is_told(
    case: speech.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(self: CTCTransformer, *args: torch.Tensor, **settings: object) -> torch.Tensor:
        out: torch.Tensor = hidden(self, *args, **settings)
        return out if out.dtype == torch.float64 else out.mul(1.1)

    hidden = CTCTransformer.hidden
    monkeypatch.setattr(CTCTransformer, "hidden", lossy)
    linear = next(make for name, make in case.setup(QUICK).items() if name.startswith("linear"))
    if case is CASES[-1]:  # a step has no call of `hidden`: the oracle is what differs
        monkeypatch.setattr(CTCTransformer, "hidden", lambda *x, **y: hidden(*x, **y).mul(1.1))
    assert "float64 oracle" in str(linear().check())
