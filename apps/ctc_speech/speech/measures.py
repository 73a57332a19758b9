"""The phoneme error rate: what has to be changed for what was said to be what was recognized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jiwer
import torch
from torch import Tensor, nn

from speech.batches import LengthOrder, Speech

FRAMES_AT_ONCE = 20_000  # of a batch in evaluation: bounds the memory
UTTERANCES_AT_ONCE = 64
SHOWN_PAIRS = 10

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
        return {
            "phoneme_error_rate": self.rate,
            "substitutions": self.substitutions / self.phones,
            "insertions": self.insertions / self.phones,
            "deletions": self.deletions / self.phones,
        }

    def lines(self) -> list[str]:
        """The numbers, for people."""
        pairs = ", ".join(f"{said} as {heard} {count}x" for said, heard, count in self.confused)
        return [
            f"{self.rate:.2%} of {self.phones:,} phones are wrong: "
            f"{self.substitutions:,} substituted, {self.insertions:,} inserted, "
            f"{self.deletions:,} deleted",
            f"most confused: {pairs or 'none'}",
        ]


def phone_errors(said: Sequence[Sequence[str]], heard: Sequence[Sequence[str]]) -> Errors:
    """The errors over all utterances together."""
    references = [" ".join(phones) for phones in said]
    hypotheses = [" ".join(phones) for phones in heard]
    result = jiwer.process_words(references, hypotheses)
    pairs: Counter[tuple[str, str]] = Counter()
    for one, other, chunks in zip(
        result.references, result.hypotheses, result.alignments, strict=True
    ):
        for chunk in chunks:
            if chunk.type == "substitute":
                mistaken = zip(
                    one[chunk.ref_start_idx : chunk.ref_end_idx],
                    other[chunk.hyp_start_idx : chunk.hyp_end_idx],
                    strict=True,
                )
                pairs.update(mistaken)
    return Errors(
        phones=sum(map(len, said)),
        substitutions=result.substitutions,
        insertions=result.insertions,
        deletions=result.deletions,
        confused=tuple((*pair, count) for pair, count in pairs.most_common(SHOWN_PAIRS)),
    )


@torch.no_grad()
def recognized(
    model: nn.Module, speech: Speech, decoders: Sequence[Decode]
) -> list[list[list[int]]]:
    """For each decoder, the phones of each utterance, as numbers; the model runs once.

    Args:
        model: a recognizer, called with frames and lengths, in the mode that it is in.
        decoders: return the phones for the log-probabilities (B, T, C) of rows of lengths (B,).
    """
    device = next(model.parameters()).device
    result: list[list[list[int]]] = [[[]] * len(speech) for _ in decoders]
    order = LengthOrder(speech.lengths(), UTTERANCES_AT_ONCE, FRAMES_AT_ONCE, seed=0)
    for places in order.epoch(0):
        batch = speech.batch(places)
        lengths = batch["lengths"].to(device)
        log_probabilities = model(batch["frames"].to(device), lengths)
        ends = output_lengths(model, lengths)
        for decode, heard in zip(decoders, result, strict=True):
            phones = decode(log_probabilities, ends)
            for place, of in zip(places.tolist(), phones, strict=True):
                heard[place] = of
    return result


def output_lengths(model: nn.Module, lengths: Tensor) -> Tensor:
    """The output frames for these frames of audio."""
    result: Tensor = model.output_lengths(lengths)  # type: ignore[operator]
    return result


def evaluated(model: nn.Module, speech: Speech, inventory: Sequence[str], decode: Decode) -> Errors:
    """The errors of `model` on `speech`."""
    return evaluated_by(model, speech, inventory, [decode])[0]


def evaluated_by(
    model: nn.Module, speech: Speech, inventory: Sequence[str], decoders: Sequence[Decode]
) -> list[Errors]:
    """The errors of `model` on `speech` with each decoder."""
    said = names(speech.classes, inventory)
    heard = recognized(model, speech, decoders)
    return [phone_errors(said, names(phones, inventory)) for phones in heard]


def names(classes: Sequence[Sequence[int]], inventory: Sequence[str]) -> list[list[str]]:
    """Phones by name instead of by number."""
    return [[inventory[number - 1] for number in row] for row in classes]
