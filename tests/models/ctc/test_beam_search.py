"""A wide beam finds the sums over all alignments; no beam is worse than the greedy path."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import BeamSearch, NGram, ctc_align, ctc_beam_search, ctc_greedy
from linattn_models.ctc.alignment import labeling_log_probability
from tests.models.ctc.test_alignment import every_path, frames_of, total

LM = NGram.estimate([[1, 2], [2, 1, 1], [2]], ["a", "b"], order=2)


def lm_log_probability(lm: NGram, labels: tuple[int, ...]) -> float:
    return -(len(labels) + 1) * math.log(lm.perplexity([labels]))


@given(st.integers(1, 5), st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.7, -0.5]))
def test_a_wide_beam_is_the_sum_over_alignments(
    length: int, seed: int, with_lm: bool, bonus: float
) -> None:
    frames = frames_of(length, 3, seed)
    expected = {}
    for labels, paths in every_path(frames).items():
        prior = 0.8 * lm_log_probability(LM, labels) if with_lm else 0.0
        expected[labels] = total(paths) + prior + bonus * len(labels)
    options: dict[str, Any] = {"lm": LM if with_lm else None, "lm_weight": 0.8}
    (hypotheses,) = ctc_beam_search(
        torch.from_numpy(frames)[None], beam=500, insertion_bonus=bonus, n_best=500, **options
    )
    scores = {tuple(h.labels): h.score for h in hypotheses}
    assert scores == pytest.approx(expected, abs=1e-9)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


@given(st.integers(1, 5), st.integers(0, 10**6))
def test_within_the_beam_prefixes_are_summed_whole(length: int, seed: int) -> None:
    """Not only what is rescored at the end: the sums that decide which prefixes stay."""
    frames = frames_of(length, 3, seed)
    search = BeamSearch(3, beam=500)
    search.feed(frames)
    totals = np.logaddexp(search._ending_blank, search._ending_phone)
    sums = {tuple(search.prefixes.phones(n)): x for n, x in zip(search._nodes, totals, strict=True)}
    expected = {labels: total(paths) for labels, paths in every_path(frames).items()}
    assert sums == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 40), st.integers(2, 6), st.integers(1, 3), st.integers(0, 10**6))
def test_never_worse_than_the_greedy_path(length: int, classes: int, beam: int, seed: int) -> None:
    frames = frames_of(length, classes, seed, sharpness=1.0)
    ((best,),) = ctc_beam_search(torch.from_numpy(frames)[None], beam=beam)
    (greedy,) = ctc_greedy(torch.from_numpy(frames)[None])
    assert best.log_probability >= labeling_log_probability(frames, greedy)
    assert best.log_probability == labeling_log_probability(frames, best.labels)
    assert list(best.phones) == ctc_align(frames, best.labels)


@given(st.lists(st.integers(0, 7), max_size=6), st.integers(0, 10**6))
def test_fed_in_pieces_it_is_the_same(sizes: list[int], seed: int) -> None:
    frames = frames_of(sum(sizes), 3, seed)
    whole, pieces = BeamSearch(3, beam=4, lm=LM), BeamSearch(3, beam=4, lm=LM)
    whole.feed(frames)
    for piece in np.split(frames, np.cumsum(sizes)):
        pieces.result()  # at any time, without an effect
        pieces.feed(torch.from_numpy(piece))
    assert pieces.result(3) == whole.result(3)


def test_rows_end_at_their_lengths() -> None:
    frames = torch.from_numpy(np.stack([frames_of(9, 4, seed) for seed in range(3)]))
    lengths = torch.tensor([9, 0, 4])
    together = ctc_beam_search(frames, lengths, n_best=2)
    for row, length in enumerate(lengths.tolist()):
        assert together[row] == ctc_beam_search(frames[row : row + 1, :length], n_best=2)[0]
    assert [(h.labels, h.score) for h in together[1]] == [([], 0.0)]


def test_certain_blanks_and_impossible_phones() -> None:
    frames = torch.full((1, 4, 3), -torch.inf)
    frames[..., 0] = 0.0
    (hypotheses,) = ctc_beam_search(frames, beam=4, n_best=4)
    assert [(h.labels, h.score) for h in hypotheses] == [([], 0.0)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"beam": 0}, "beam"),
        ({"n_best": 0}, "n_best"),
        ({"lm_weight": -1.0}, "lm_weight"),
        ({"insertion_bonus": float("nan")}, "insertion_bonus"),
        ({"lm": LM}, "lm"),
        ({"lengths": torch.tensor([6])}, "lengths"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ctc_beam_search(torch.zeros(1, 5, 4), **options)


def test_frames_that_cannot_be_decoded_are_refused() -> None:
    with pytest.raises(ValueError, match="classes"):
        BeamSearch(4).feed(frames_of(2, 3))
    with pytest.raises(ValueError, match="frame 1"):
        ctc_beam_search(torch.tensor([[[0.0, 0.0], [torch.nan, 0.0]]]))
    with pytest.raises(ValueError, match="phone"):
        ctc_beam_search(torch.zeros(2, 3))


class NothingButTheFirst:
    """A language model in which phone 1 alone may be named, once."""

    start = 0

    def advance(self, state: int, phone: int) -> int:
        return state + 1

    def log_probs(self, state: int) -> np.ndarray:
        return np.array([0.0, 0.0 if state == 0 else -np.inf, -np.inf])


def test_a_language_model_may_exclude_everything() -> None:
    """Frames that are phone 2, then more frames: no hypothesis, and no error."""
    frames = np.log(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).clip(1e-300))
    frames[frames < -600] = -np.inf
    search = BeamSearch(3, lm=NothingButTheFirst())
    search.feed(frames)
    assert search.result() == []


def peaky(length: int, seed: int) -> Tensor:
    """Log-probabilities of a recognizer that is rather sure: mostly blanks, some phones."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 4, (length,), generator=generator)
    classes[torch.rand(length, generator=generator) < 0.5] = 0
    logits = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    return (logits + 5 * torch.nn.functional.one_hot(classes, 4)).log_softmax(-1)


@settings(max_examples=15)
@given(length=st.integers(1, 80), piece=st.integers(5, 20), seed=st.integers(0, 99))
def test_commits_change_no_phone_and_free_what_is_final(length: int, piece: int, seed: int) -> None:
    frames = peaky(length, seed)
    search, final = BeamSearch(4, beam=4), []
    for part in frames.split(piece):
        search.feed(part)
        before = final + list(search.result()[0].phones)
        final += search.commit()
        assert [p.phone for p in before[: len(final)]] == [p.phone for p in final]
    (whole,) = ctc_beam_search(frames[None], beam=4)[0]
    phones = final + list(search.result()[0].phones)
    assert [p.phone for p in phones] == whole.labels
    times = [(p.first, p.last) for p in phones]
    assert times == sorted(times) and (not times or times[-1][1] < length)


@settings(max_examples=40)
@given(longest=st.integers(1, 12), piece=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_no_more_frames_are_kept_than_asked_for(longest: int, piece: int, seed: int) -> None:
    sharp, flat = peaky(40, seed), torch.from_numpy(frames_of(40, 4, seed))
    search, final = BeamSearch(4, beam=4), []
    for part in torch.cat([sharp, flat]).split(piece):
        search.feed(part)
        final += search.commit(longest)
        assert search.num_frames <= longest
        parents = search.prefixes.parents
        ends = set(range(len(parents))) - set(parents)
        assert len(ends) <= search.beam  # each prefix that is kept leads to a hypothesis
        spans = [(p.first, p.last) for p in (*final, *search.result()[0].phones)]
        assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_a_phone_that_is_longer_keeps_its_begin() -> None:
    one, blank = (torch.eye(4, dtype=torch.float64)[[x]].clamp(1e-3).log() for x in (1, 0))
    search, final = BeamSearch(4), []
    for part in (blank.expand(7, 4), *[one.expand(50, 4)] * 10, blank.expand(300, 4)):
        search.feed(part)
        final += search.commit(longest=100)
    assert [(p.phone, p.first, p.last) for p in final] == [(1, 7, 506)]


def test_memory_is_bounded_also_in_silence() -> None:
    search = BeamSearch(4, beam=4)
    silence = torch.tensor([[0.97, 0.01, 0.01, 0.01]]).log().expand(400, 4)
    for seed in range(5):
        for part in (peaky(300, seed), silence):
            search.feed(part)
            search.commit(longest=100)
            assert search.num_frames <= 100
            assert len(search.prefixes.parents) < 400
    assert search.result()[0].log_probability < 0
