"""Prefix beam search: the phones likeliest over all alignments, with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.validation import at_least, in_range, lengths_within
from linattn_models.ctc.alignment import (
    BLANK,
    AlignedPhone,
    Floats,
    as_frames,
    check_classes,
    ctc_greedy,
    find_alignment,
    labeling_log_probability,
)
from linattn_models.ctc.prefixes import LanguageModel, Prefixes

LARGEST_BONUS = 1e9


@dataclass(frozen=True)
class Hypothesis:
    """A sequence of phones for a row of frames.

    Attributes:
        phones: with their frames and confidences, in the best alignment.
        log_probability: log p(phones | frames) in nats, summed over all alignments.
        score: log_probability + lm_weight * log p_lm(phones) + insertion_bonus * len(phones).
    """

    phones: tuple[AlignedPhone, ...]
    log_probability: float
    score: float

    @property
    def labels(self) -> list[int]:
        """The classes of the phones."""
        return [phone.phone for phone in self.phones]


class BeamSearch:
    """Decodes frames as they arrive: call `feed` any number of times, `result` at any time.

    Call `commit` now and then, too, and memory and the time of a result do not grow: it returns the
    phones that are final, and forgets them.

    After each frame the `beam` prefixes with the highest scores are kept (Hannun et al. 2014).
    `result` computes exact scores. The phones of the greedy path are always among its candidates,
    so the best hypothesis never scores lower.

    Args:
        num_classes: C, with the blank.
        beam: the number of prefixes that are kept.
        lm: a language model over phones, such as an `NGram`; none by default.
        lm_weight: the factor of the language model's natural logarithms.
        insertion_bonus: added for each phone, in nats; positive values make hypotheses longer.

    Raises:
        ValueError: a number out of range, or a language model over another number of phones.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        beam: int = 16,
        lm: LanguageModel | None = None,
        lm_weight: float = 0.5,
        insertion_bonus: float = 0.0,
    ) -> None:
        num_classes = at_least("num_classes", num_classes, 2)
        beam = at_least("beam", beam, 1)
        in_range("lm_weight", lm_weight, 0.0, np.inf)
        in_range("insertion_bonus", insertion_bonus, -LARGEST_BONUS, LARGEST_BONUS)
        self.beam = beam
        self.prefixes = Prefixes(num_classes, lm, lm_weight, insertion_bonus)
        self._fed: list[Floats] = []
        self._first = 0  # the first frame that is still kept
        self._began = 0  # where the phone began that goes on at that frame
        # One entry for each prefix in the beam; at first the empty prefix alone.
        self._nodes = [0]
        self._ending_blank = np.zeros(1)  # log p of the paths that end in a blank
        self._ending_phone = np.full(1, -np.inf)  # log p of those that end in the last phone

    def feed(self, log_probabilities: Tensor | NDArray[Any]) -> None:
        """Reads n more frames.

        Args:
            log_probabilities: (n, C), any n.

        Raises:
            ValueError: another shape, NaN, or a frame in which every class is impossible.

        Cost: O(beam C) time and O(C + beam) memory per frame.
        """
        frames = as_frames(log_probabilities)
        classes = self.prefixes.num_classes
        if frames.shape[1] != classes:
            raise ValueError(expected("log_probabilities", f"{classes} classes", frames.shape[1]))
        self._fed.append(frames.copy())
        for frame in frames:
            self._advance(frame)

    def result(self, n_best: int = 1) -> list[Hypothesis]:
        """At most `n_best` hypotheses for the frames so far, the best first.

        After a `commit`, phones and probabilities are those after the final phones, and scores add
        language model and bonus of all phones; frames are counted from the beginning. None at all
        if the language model excludes every sequence of phones that the frames allow.

        Cost: O(n_best T S) time for T frames and S phones, T (2 S + 1) bytes.
        """
        n_best = at_least("n_best", n_best, 1)
        frames = self._frames()
        order = self._order()[:n_best]
        candidates = [self.prefixes.phones(self._nodes[entry]) for entry in order]
        greedy = ctc_greedy(torch.from_numpy(frames)[None])[0]
        if greedy not in candidates:
            candidates.append(greedy)
        scored = [self._score(frames, phones) for phones in candidates]
        possible = sorted((s for s in scored if s[0] > -np.inf), key=lambda s: -s[0])
        return [
            Hypothesis(tuple(self._align(frames, phones) or ()), log_probability, score)
            for score, log_probability, phones in possible[:n_best]
        ]

    @property
    def num_frames(self) -> int:
        """The frames that are kept."""
        return sum(map(len, self._fed))

    def commit(self, longest: int = 500) -> list[AlignedPhone]:
        """The phones that have become final since the last commit; they and their frames are freed.

        A phone is final if all prefixes of the beam have it and another one behind it. Then no
        later frame changes it.

        Args:
            longest: the most frames that are kept. If there are more, as when no phone comes, older
                phones of the best prefix become final, and prefixes without them are dropped. A
                phone that is longer has the confidence of its kept frames.

        Returns:
            The phones in order, with frames counted from the beginning.

        Cost: O(T S) time for the T frames and S phones that are kept.
        """
        longest = at_least("longest", longest, 1)
        frames = self._frames()
        if not self._nodes or not len(frames):
            return []
        paths = [self.prefixes.path(node) for node in self._nodes]
        best, aligned = self._align_best(frames, paths)
        steps = zip(*paths, strict=False)  # as many as the shortest path has
        shared = sum(1 for _ in takewhile(lambda step: len(set(step)) == 1, steps))
        # Frames before the horizon go, whatever the paths share.
        horizon = self._first + max(0, len(frames) - longest)
        final = max(0, min(shared, len(aligned)) - 1, sum(x.last < horizon for x in aligned))
        # Up to the first phone that stays; without a final phone, no more than has to go.
        begins = aligned[final].first if final < len(aligned) else horizon
        cut = max(begins, horizon) if final else horizon
        root = best[final - 1] if final else 0
        self._keep([path[:final] == best[:final] for path in paths], root)
        if cut > self._first:
            self._fed = [frames[cut - self._first :].copy()]
            self._first, self._began = cut, min(begins, cut)
        return aligned[:final]

    def _align_best(
        self, frames: Floats, paths: Sequence[list[int]]
    ) -> tuple[list[int], list[AlignedPhone]]:
        """The best path through the prefixes that the kept frames allow, and its alignment."""
        for entry in self._order():
            best = paths[entry]
            aligned = self._align(frames, [self.prefixes.lasts[node] for node in best])
            if aligned is not None:
                return best, aligned
        return [], []  # frames that are gone were needed for all of them

    def _keep(self, stays: list[bool], root: int) -> None:
        """Drops the other prefixes, and the nodes that lead to none."""
        nodes = [node for node, stay in zip(self._nodes, stays, strict=True) if stay]
        self._nodes = self.prefixes.prune(root, nodes)
        self._ending_blank = self._ending_blank[stays]
        self._ending_phone = self._ending_phone[stays]

    def _frames(self) -> Floats:
        """The frames that are kept, (T, C)."""
        return np.concatenate([np.empty((0, self.prefixes.num_classes)), *self._fed])

    def _order(self) -> list[int]:
        """The entries of the beam, the best first, as if the frames ended here."""
        scores = np.logaddexp(self._ending_blank, self._ending_phone)
        scores += [self.prefixes.final_prior(node) for node in self._nodes]
        return [int(entry) for entry in np.argsort(-scores, kind="stable")]

    def _align(self, frames: Floats, phones: list[int]) -> list[AlignedPhone] | None:
        """The phones, with frames counted from the beginning; None if no path gives them."""
        aligned = find_alignment(frames, phones)
        if aligned and not aligned[0].first:
            aligned[0] = replace(aligned[0], first=self._began - self._first)
        return aligned and [phone.shift(self._first) for phone in aligned]

    def _score(self, frames: Floats, phones: list[int]) -> tuple[float, float, list[int]]:
        log_probability = labeling_log_probability(frames, phones)
        prior = self.prefixes.final_prior(self.prefixes.node(phones))
        return log_probability + prior, log_probability, phones

    def _advance(self, frame: Floats) -> None:
        prefixes, nodes = self.prefixes, self._nodes
        if not nodes:
            return  # the language model has excluded every prefix
        last = np.array([prefixes.lasts[node] for node in nodes])
        blank, phone, grown = self._paths(frame, last)
        prior = np.array([prefixes.priors[node] for node in nodes])
        staying = np.logaddexp(blank, phone) + prior
        growing = grown + prior[:, None] + [prefixes.steps(node) for node in nodes]
        scores = np.concatenate([staying, growing.ravel()])
        best = np.argsort(-scores, kind="stable")[: self.beam]
        best = best[scores[best] > -np.inf]
        stay, grow = best[best < len(nodes)], best[best >= len(nodes)] - len(nodes)
        row, label = np.divmod(grow, prefixes.num_classes)
        parents = [nodes[entry] for entry in row]
        new = list(map(prefixes.extend, parents, label.tolist()))
        self._nodes = [nodes[entry] for entry in stay] + new
        self._ending_blank = np.concatenate([blank[stay], np.full(len(new), -np.inf)])
        self._ending_phone = np.concatenate([phone[stay], grown[row, label]])

    def _paths(self, frame: Floats, last: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """log p of the paths extended by one frame, for each prefix of the beam.

        Returns:
            (prefixes,) for paths that end in a blank; (prefixes,) for paths that end in the
            prefix's last phone; (prefixes, C) for paths to a new prefix, one phone longer.
        """
        totals = np.logaddexp(self._ending_blank, self._ending_phone)
        phone = self._ending_phone + frame[last]  # -inf for the empty prefix, which has none
        grown = totals[:, None] + frame
        grown[np.arange(len(last)), last] = self._ending_blank + frame[last]  # a blank between
        grown[:, BLANK] = -np.inf
        # Paths that grow into another prefix of the beam are added to that prefix.
        parents = np.array([self.prefixes.parents[node] for node in self._nodes])
        child, parent = np.nonzero(parents[:, None] == np.array(self._nodes))
        phone[child] = np.logaddexp(phone[child], grown[parent, last[child]])
        grown[parent, last[child]] = -np.inf
        return totals + frame[BLANK], phone, grown


def ctc_beam_search(
    log_probabilities: Tensor,
    lengths: Tensor | None = None,
    *,
    beam: int = 16,
    lm: LanguageModel | None = None,
    lm_weight: float = 0.5,
    insertion_bonus: float = 0.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each row, by `BeamSearch`.

    Args:
        log_probabilities: (B, T, C), normalized over C; class 0 is the blank.
        lengths: (B,) int, each row's output frames, in 0..T; all T by default.
        beam, lm, lm_weight, insertion_bonus: see `BeamSearch`.
        n_best: the most hypotheses per row.

    Returns:
        For each row its hypotheses, the best first.

    Raises:
        ValueError, TypeError: another shape, NaN, or a number out of range.

    Cost: O(B T beam C) time on one core.
    """
    check_classes(log_probabilities)
    batch, length, classes = log_probabilities.shape
    if lengths is None:
        lengths = torch.full((batch,), length)
    lengths_within("lengths", lengths, batch, length)
    hypotheses = []
    for row, frames in zip(log_probabilities, lengths.tolist(), strict=True):
        search = BeamSearch(
            classes, beam=beam, lm=lm, lm_weight=lm_weight, insertion_bonus=insertion_bonus
        )
        search.feed(row[:frames])
        hypotheses.append(search.result(n_best))
    return hypotheses
