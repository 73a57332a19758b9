"""Error rates: what has to be changed for what was recognized to be what was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jiwer
import torch
from torch import Tensor
from tqdm import tqdm

from linattn_models.training import gather_lists, take_share
from speech.batches import LengthOrder, Speech
from speech.models import Recognizer
from speech.units import Units, name_rate

FRAMES_AT_ONCE = 20_000  # of a batch in evaluation: bounds the memory
UTTERANCES_AT_ONCE = 64
SHOWN_PAIRS = 10
KINDS = ("substitutions", "insertions", "deletions")

Decode = Callable[[Tensor, Tensor], list[list[int]]]  # (log-probabilities, their lengths) -> labels


@dataclass(frozen=True)
class Errors:
    """The fewest changes that turn what was said into what was recognized.

    Attributes:
        noun: what is counted, a phone or a word.
        said: how many were said.
        substitutions, insertions, deletions: changes of each kind.
        confused: how often one was taken for another, the most frequent pairs first.
        words: the errors of the words that labels spell.
    """

    noun: str
    said: int
    substitutions: int
    insertions: int
    deletions: int
    confused: tuple[tuple[str, str, int], ...]
    words: Errors | None = None

    @property
    def rate(self) -> float:
        """Changes for each that was said."""
        return (self.substitutions + self.insertions + self.deletions) / self.said

    def metrics(self) -> dict[str, float]:
        """As a run's record has them, the kinds as shares of what was said."""
        shares = {kind: getattr(self, kind) / self.said for kind in KINDS}
        words = {} if self.words is None else {name_rate("word"): self.words.rate}
        return {name_rate(self.noun): self.rate, **words, **shares}

    def lines(self) -> list[str]:
        """The numbers, for people."""
        pairs = ", ".join(f"{said} as {heard} {count}x" for said, heard, count in self.confused)
        return [
            f"{self.rate:.2%} of {self.said:,} {self.noun}s are wrong: "
            f"{self.substitutions:,} substituted, {self.insertions:,} inserted, "
            f"{self.deletions:,} deleted",
            f"most confused: {pairs or 'none'}",
            *([] if self.words is None else self.words.lines()),
        ]


def count_errors(
    said: Sequence[Sequence[str]], heard: Sequence[Sequence[str]], noun: str = "phone"
) -> Errors:
    """The errors over all utterances together."""
    result = jiwer.process_words([" ".join(x) for x in said], [" ".join(x) for x in heard])
    pairs: Counter[tuple[str, str]] = Counter()
    rows = zip(result.references, result.hypotheses, result.alignments, strict=True)
    for reference, hypothesis, chunks in rows:
        for chunk in chunks:
            if chunk.type == "substitute":
                mistaken = reference[chunk.ref_start_idx : chunk.ref_end_idx]
                pairs.update(zip(mistaken, hypothesis[chunk.hyp_start_idx :], strict=False))
    return Errors(
        noun=noun,
        said=sum(map(len, said)),
        substitutions=result.substitutions,
        insertions=result.insertions,
        deletions=result.deletions,
        confused=tuple((*pair, count) for pair, count in pairs.most_common(SHOWN_PAIRS)),
    )


def count_label_errors(
    said: Sequence[Sequence[int]], heard: Sequence[Sequence[int]], units: Units
) -> Errors:
    """Those of classes, and of the words that they spell."""
    labels, others = ([units.labels(row) for row in rows] for rows in (said, heard))
    errors = count_errors(labels, others, units.noun)
    if not units.spell:
        return errors
    words, found = ([units.text(row).split() for row in rows] for rows in (labels, others))
    return replace(errors, words=count_errors(words, found, "word"))


@torch.no_grad()
def evaluate(
    model: Recognizer,
    speech: Speech,
    units: Units,
    decoders: Sequence[Decode],
    progress: bool = False,
    chunk: int | None = None,
) -> list[Errors]:
    """The errors of `model` on `speech` with each decoder; the model runs once.

    All processes of torchrun must call it: each recognizes a part.

    Args:
        model: in the mode that it is in.
        units: the labels of the classes.
        decoders: return the classes for the log-probabilities (B, T, C) of rows of lengths (B,).
        progress: whether a bar is shown.
        chunk: output frames of a chunk, for a model that streams.
    """
    device = next(model.parameters()).device
    # By decoder, the labels of the utterance at each place.
    heard: list[list[tuple[int, list[int]]]] = [[] for _ in decoders]
    order = LengthOrder(speech.lengths(), UTTERANCES_AT_ONCE, FRAMES_AT_ONCE, seed=0)
    batches = take_share(order.epoch(0))
    total = sum(map(len, batches)) * len(decoders)
    with tqdm(
        total=total, desc="decoding", unit="utterance", disable=None if progress else True
    ) as bar:
        for places in batches:
            batch = speech.batch(places)
            lengths = batch["lengths"].to(device)
            log_probabilities = model(batch["frames"].to(device), lengths, chunk=chunk)
            ends = model.output_lengths(lengths)
            for decode, labels in zip(decoders, heard, strict=True):
                labels += zip(places.tolist(), decode(log_probabilities, ends), strict=True)
                bar.update(len(places))
    every = [[of for _, of in sorted(gather_lists(labels))] for labels in heard]
    return [count_label_errors(speech.classes, labels, units) for labels in every]
