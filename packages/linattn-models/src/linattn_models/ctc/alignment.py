"""From a class for each frame to phones: greedy, their probability, their best alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.packing import past_lengths
from linattn_models.basics.validation import int_list, lengths_within, wrong_shape

BLANK = 0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AlignedPhone:
    """A phone and the output frames that are aligned with it.

    Attributes:
        phone: its class.
        first, last: its first and its last output frame, both included.
        confidence: geometric mean of the probabilities of the phone at these frames, in 0..1.
    """

    phone: int
    first: int
    last: int
    confidence: float

    def shift(self, frames: int) -> AlignedPhone:
        """The phone so many frames later."""
        return replace(self, first=self.first + frames, last=self.last + frames)


def ctc_align(log_probabilities: Tensor | Floats, phones: Sequence[int]) -> list[AlignedPhone]:
    """The frames of each phone in the likeliest path that gives `phones` (Viterbi).

    Args:
        log_probabilities: (T, C) of one row; class 0 is the blank.
        phones: from 1 to C - 1.

    Raises:
        ValueError: another shape, NaN, phones out of range, or no path of T frames gives them.
        TypeError: phones that are not integers.

    Cost: O(T S) time and T (2 S + 1) bytes for S phones.
    """
    frames = as_frames(log_probabilities)
    phones, classes = int_list("phones", phones), frames.shape[1]
    for phone in phones:
        if not 1 <= phone < classes:
            wanted = f"classes in 1..{classes - 1}, since {BLANK} is the blank"
            raise ValueError(expected("phones", wanted, phone))
    aligned = find_alignment(frames, phones)
    if aligned is None:
        wanted = f"a path of {len(frames)} frames for {len(phones)} phones"
        raise ValueError(expected("phones", wanted, "none of a probability above 0"))
    return aligned


def find_alignment(frames: Floats, phones: Sequence[int]) -> list[AlignedPhone] | None:
    """As `ctc_align`, for (T, C) log-probabilities; None if no path gives the phones."""
    states, may_skip = _states(phones)
    moves = np.zeros((len(frames), len(states)), np.uint8)  # the path came from this many back
    scores = _initial(len(states))
    for time, frame in enumerate(frames):
        before = _predecessors(scores, may_skip)
        moves[time] = before.argmax(0)
        scores = before.max(0) + frame[states]
    state = len(states) - 1 - int(len(states) > 1 and scores[-2] > scores[-1])
    if scores[state] == -np.inf:
        return None
    spans: list[list[int]] = [[] for _ in phones]
    for time in range(len(frames) - 1, -1, -1):
        if state % 2:
            spans[state // 2].append(time)
        state -= int(moves[time, state])
    return [_align_phone(frames, phone, times) for phone, times in zip(phones, spans, strict=True)]


def labeling_log_probability(frames: Floats, phones: Sequence[int]) -> float:
    """log p(phones | frames), in nats: the sum over all paths of T frames that give the phones.

    Args:
        frames: (T, C) log-probabilities.
        phones: S classes from 1 to C - 1.

    Cost: O(T S) time, O(S) memory.
    """
    states, may_skip = _states(phones)
    scores = _initial(len(states))
    for frame in frames:
        scores = np.logaddexp.reduce(_predecessors(scores, may_skip), axis=0) + frame[states]
    return float(np.logaddexp.reduce(scores[-2:]))


def as_frames(log_probabilities: Tensor | NDArray[Any]) -> Floats:
    """(T, C) in float64; refuses other shapes, NaN, and frames in which no class is possible."""
    if isinstance(log_probabilities, Tensor):
        log_probabilities = log_probabilities.detach().double().cpu().numpy()
    frames = np.asarray(log_probabilities, np.float64)
    if frames.ndim != 2 or frames.shape[1] < 2:
        wanted = "shape (frames, classes) with the blank and at least one phone"
        raise ValueError(expected("log_probabilities", wanted, frames.shape))
    highest = frames.max(1)  # NaN where a class is NaN
    if not np.isfinite(highest).all():
        time = int(np.flatnonzero(~np.isfinite(highest))[0])
        wanted = "a finite number as the highest of each frame"
        raise ValueError(expected("log_probabilities", wanted, f"{highest[time]} in frame {time}"))
    return frames


def _states(phones: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The phones with blanks around them, and for which a path may skip the blank before."""
    states = np.full(2 * len(phones) + 1, BLANK, np.int64)
    states[1::2] = phones
    may_skip = np.zeros(len(states), bool)
    may_skip[3::2] = states[3::2] != states[1:-2:2]
    return states, may_skip


def _initial(states: int) -> Floats:
    """Scores before the first frame: a path starts at the first blank, or moves to a phone."""
    scores = np.full(states, -np.inf)
    scores[0] = 0.0
    return scores


def _predecessors(scores: Floats, may_skip: NDArray[np.bool_]) -> Floats:
    """(3, states): the scores of paths that stay, come from one state before, or from two."""
    before = np.full((3, len(scores)), -np.inf)
    before[0] = scores
    before[1, 1:] = scores[:-1]
    before[2, 2:] = np.where(may_skip[2:], scores[:-2], -np.inf)
    return before


def _align_phone(frames: Floats, phone: int, times: Sequence[int]) -> AlignedPhone:
    """The phone at these frames; `times` is in descending order."""
    confidence = float(np.exp(frames[times, phone].mean()))
    return AlignedPhone(int(phone), times[-1], times[0], min(confidence, 1.0))


def ctc_greedy(log_probabilities: Tensor, lengths: Tensor | None = None) -> list[list[int]]:
    """The phones of each row's likeliest path: repeats merged, then blanks removed.

    Args:
        log_probabilities: (B, T, C), or other scores in the same order, such as logits; class 0 is
            the blank.
        lengths: (B,) int, each row's frames, in 0..T; all T by default.

    Returns:
        For each row its phones, from 1 to C - 1.

    Raises:
        ValueError, TypeError: another shape, or lengths out of range.
    """
    check_classes(log_probabilities)
    best = log_probabilities.argmax(-1)  # (B, T)
    is_phone = best != BLANK
    is_phone[:, 1:] &= best[:, 1:] != best[:, :-1]
    if lengths is not None:
        lengths_within("lengths", lengths, *best.shape)
        is_phone &= ~past_lengths(lengths.to(best.device), best.shape[1])
    return [row[mask].tolist() for row, mask in zip(best.cpu(), is_phone.cpu(), strict=True)]


def check_classes(log_probabilities: Tensor) -> None:
    """Refuses anything but (B, T, C) with the blank and at least one phone."""
    if log_probabilities.ndim != 3 or log_probabilities.shape[2] < 2:
        wanted = "(batch, frames, classes) with the blank and at least one phone"
        raise wrong_shape("log_probabilities", wanted, log_probabilities)
