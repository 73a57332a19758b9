"""The phoneme error rate: what has to be changed for what was said to be what was recognized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jiwer
import torch
from torch import Tensor
from tqdm import tqdm

from linattn_models.training import gather_lists, take_share
from speech.batches import LengthOrder, Speech
from speech.models import Recognizer

FRAMES_AT_ONCE = 20_000  # of a batch in evaluation: bounds the memory
UTTERANCES_AT_ONCE = 64
SHOWN_PAIRS = 10
KINDS = ("substitutions", "insertions", "deletions")

Decode = Callable[[Tensor, Tensor], list[list[int]]]  # (log-probabilities, their lengths) -> phones


@dataclass(frozen=True)
class Errors:
    """The fewest changes that turn what was said into what was recognized.

    Attributes:
        phones: that were said.
        substitutions, insertions, deletions: changes of each kind.
        confused: how often one phone was taken for another, the most frequent pairs first.
    """

    phones: int
    substitutions: int
    insertions: int
    deletions: int
    confused: tuple[tuple[str, str, int], ...]

    @property
    def rate(self) -> float:
        """Changes for each phone that was said."""
        return (self.substitutions + self.insertions + self.deletions) / self.phones

    def metrics(self) -> dict[str, float]:
        """As a run's record has them, the kinds as shares of the phones."""
        shares = {kind: getattr(self, kind) / self.phones for kind in KINDS}
        return {"phoneme_error_rate": self.rate, **shares}

    def lines(self) -> list[str]:
        """The numbers, for people."""
        pairs = ", ".join(f"{said} as {heard} {count}x" for said, heard, count in self.confused)
        return [
            f"{self.rate:.2%} of {self.phones:,} phones are wrong: "
            f"{self.substitutions:,} substituted, {self.insertions:,} inserted, "
            f"{self.deletions:,} deleted",
            f"most confused: {pairs or 'none'}",
        ]


def count_errors(said: Sequence[Sequence[str]], heard: Sequence[Sequence[str]]) -> Errors:
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
        phones=sum(map(len, said)),
        substitutions=result.substitutions,
        insertions=result.insertions,
        deletions=result.deletions,
        confused=tuple((*pair, count) for pair, count in pairs.most_common(SHOWN_PAIRS)),
    )


@torch.no_grad()
def evaluate(
    model: Recognizer,
    speech: Speech,
    inventory: Sequence[str],
    decoders: Sequence[Decode],
    progress: bool = False,
    chunk: int | None = None,
) -> list[Errors]:
    """The errors of `model` on `speech` with each decoder; the model runs once.

    All processes of torchrun must call it: each recognizes a part.

    Args:
        model: in the mode that it is in.
        decoders: return the phones for the log-probabilities (B, T, C) of rows of lengths (B,).
        progress: whether a bar is shown.
        chunk: output frames of a chunk, for a model that streams.
    """
    device = next(model.parameters()).device
    # By decoder, the phones of the utterance at each place.
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
            for decode, phones in zip(decoders, heard, strict=True):
                phones += zip(places.tolist(), decode(log_probabilities, ends), strict=True)
                bar.update(len(places))
    said = _names(speech.classes, inventory)
    every = [[of for _, of in sorted(gather_lists(phones))] for phones in heard]
    return [count_errors(said, _names(phones, inventory)) for phones in every]


def _names(classes: Sequence[Sequence[int]], inventory: Sequence[str]) -> list[list[str]]:
    return [[inventory[number - 1] for number in row] for row in classes]
