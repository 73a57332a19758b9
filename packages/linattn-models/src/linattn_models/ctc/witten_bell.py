"""Interpolated Witten-Bell smoothing: n-gram probabilities from counts, none of them 0."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from linattn_models.ctc.arpa import ZERO, Entry

History = tuple[int, ...]


def witten_bell(
    sentences: Iterable[Sequence[int]], tokens: int, order: int
) -> dict[History, Entry]:
    """The entries of an n-gram model.

        p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))
        backoff(h) = t(h) / (c(h) + t(h))

    c(h w) is the count of the n-gram h w, c(h) the sum of c(h w) over w, t(h) the number of
    different w after h, and h' is h without its first token. The empty history is interpolated with
    equal probabilities for all tokens. (Witten and Bell 1991, method C)

    Args:
        sentences: each starts with a token that is never predicted and ends with the end token.
        tokens: the number of tokens that can be predicted: 0, 1, ..., tokens - 1.
        order: the length of the longest n-grams.
    """
    counts = _counts(sentences, order)
    probabilities: dict[History, float] = {}
    backoffs: dict[History, float] = {}
    for history in sorted(counts, key=len):  # shorter ones first, because longer ones use them
        after = counts[history]
        total = after.total() + len(after)
        backoffs[history] = len(after) / total
        for token in after if history else range(tokens):
            shorter = probabilities[(*history[1:], token)] if history else 1 / tokens
            probabilities[(*history, token)] = after[token] / total + backoffs[history] * shorter
    starts = {history: Entry(ZERO) for history in backoffs if history}  # replaced where predicted
    entries = starts | {ngram: Entry(math.log10(p)) for ngram, p in probabilities.items()}
    for history in starts:
        entries[history] = entries[history]._replace(backoff=math.log10(backoffs[history]))
    return entries


def _counts(sentences: Iterable[Sequence[int]], order: int) -> dict[History, Counter[int]]:
    """How often each token follows each history of up to `order` - 1 tokens."""
    counts: dict[History, Counter[int]] = defaultdict(Counter)
    for sentence in sentences:
        for last in range(1, len(sentence)):
            for first in range(max(0, last - order + 1), last + 1):
                counts[tuple(sentence[first:last])][sentence[last]] += 1
    return counts
