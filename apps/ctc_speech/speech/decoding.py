"""From log-probabilities to labels by beam search, with or without an n-gram over labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.validation import in_range
from linattn_models.ctc import AlignedPhone, BeamSearch, Hypothesis, NGram
from linattn_models.ctc.alignment import as_frames, labeling_log_probability
from linattn_models.ctc.beam_search import LARGEST_BONUS

LARGEST_BEAM = 10_000  # its square is the size of a matrix
PIECE = 6_000  # output frames after which phones are made final: four minutes


@dataclass(frozen=True)
class Decoding:
    """A prefix beam search; the docstrings are the help of the flags."""

    beam: int = 16
    """Prefixes that the search keeps."""
    lm: Path | None = None
    """An ARPA file with a model of the labels; none by default."""
    lm_weight: float = 0.5
    """Weight of the language model's log-probabilities."""
    insertion_bonus: float | None = None
    """Added for each label; if not given 1 with a language model, else 0."""

    def check(self) -> None:
        """Refuses numbers that are out of range."""
        if not 1 <= self.beam <= LARGEST_BEAM:
            raise ValueError(expected("--beam", f"1 to {LARGEST_BEAM:,}", self.beam))
        in_range("--lm-weight", self.lm_weight, 0.0, math.inf)
        if self.insertion_bonus is not None:
            in_range("--insertion-bonus", self.insertion_bonus, -LARGEST_BONUS, LARGEST_BONUS)


@dataclass(frozen=True)
class Search:
    """A decoding with its language model over labels, if any."""

    decoding: Decoding = Decoding()
    lm: NGram | None = None

    @classmethod
    def read(cls, decoding: Decoding, inventory: Sequence[str]) -> Search:
        """The decoding with the language model of its file, if it names one."""
        lm = None if decoding.lm is None else NGram.read(decoding.lm, inventory)
        return cls(decoding, lm)

    @property
    def bonus(self) -> float:
        """What is added for each label."""
        given = self.decoding.insertion_bonus
        return given if given is not None else float(self.lm is not None)

    @property
    def label(self) -> str:
        """For people, without the beam."""
        weights = f"weight {self.decoding.lm_weight:g}, bonus {self.bonus:g}"
        return "no n-gram" if self.lm is None else f"{self.lm.order}-gram, {weights}"

    def labels(self, log_probabilities: Tensor, lengths: Tensor) -> list[list[int]]:
        """The classes of each row."""
        rows = self.hypotheses(log_probabilities, lengths, 1)
        return [best[0].labels if best else [] for best in rows]

    def hypotheses(
        self, log_probabilities: Tensor, lengths: Tensor, n_best: int
    ) -> list[list[Hypothesis]]:
        """The best labels of each row by beam search, with times and confidence."""
        rows = zip(log_probabilities, lengths.tolist(), strict=True)
        return [self._search_row(row[:length], n_best) for row, length in rows]

    def begin(self, num_classes: int) -> BeamSearch:
        """A search that has no frames yet, with this beam and language model."""
        decoding = self.decoding
        return BeamSearch(
            num_classes,
            beam=decoding.beam,
            lm=self.lm,
            lm_weight=decoding.lm_weight,
            insertion_bonus=self.bonus,
        )

    def _search_row(self, frames: Tensor, n_best: int) -> list[Hypothesis]:
        """In linear time: in a row longer than PIECE, early phones become final.

        Its probability is that of alignments in which each part has its own phones.
        """
        search, pieces = self.begin(frames.shape[1]), list(frames.split(PIECE))
        final: list[AlignedPhone] = []
        log_probability, fed, freed = 0.0, 0, 0
        for piece in pieces[:-1]:
            search.feed(piece)
            phones, fed = search.commit(), fed + len(piece)
            part = as_frames(frames[freed : fed - search.num_frames])
            if len(part):
                labels = [phone.phone for phone in phones]
                log_probability += labeling_log_probability(part, labels)
            final, freed = final + phones, freed + len(part)
        search.feed(pieces[-1])
        return [
            Hypothesis(
                (*final, *rest.phones),
                log_probability + rest.log_probability,
                log_probability + rest.score,
            )
            for rest in search.result(n_best)
        ]


def mean_confidence(labels: Sequence[AlignedPhone]) -> float:
    """The geometric mean of the labels' probabilities; 1 without labels."""
    logarithms = [math.log(max(label.confidence, 1e-30)) for label in labels]
    return math.exp(sum(logarithms) / len(labels)) if labels else 1.0
