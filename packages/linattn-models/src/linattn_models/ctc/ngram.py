"""An n-gram model over phones, estimated from transcripts or read from an ARPA file."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import at_least, int_list
from linattn_models.ctc.arpa import (
    END_WORD,
    START_WORD,
    UNKNOWN_WORD,
    ZERO,
    Entry,
    read_arpa,
    write_arpa,
)

History = tuple[int, ...]
START, END = -1, 0
"""Tokens before the first and after the last phone; phones are 1, 2, ... The end has the class
number of the blank, which a language model never sees."""


class NGram:
    """p(phone | the phones before it), of which the last `order` - 1 matter.

    An n-gram that is not listed backs off: p(w | h) = backoff(h) p(w | h without its first phone).
    A sentence starts with `START`, which is never predicted, and ends with `END` = 0.

    Args:
        phones: the names of the classes 1, 2, ...
        entries: for each n-gram, a tuple of phones, START and END: log10 p of its last token given
            the others, and log10 of the backoff of the whole n-gram.

    Raises:
        ValueError: names that an ARPA file cannot hold, or a phone without a probability.
    """

    def __init__(self, phones: Sequence[str], entries: Mapping[History, Entry]) -> None:
        self.phones = tuple(phones)
        self.entries = dict(entries)
        self.order = max(map(len, entries), default=1)
        # Those on which a probability depends: what begins an n-gram, and what has a backoff.
        self._histories = {
            ngram[:length]
            for ngram in self.entries
            for length in range(min(len(ngram) + 1, self.order))
        }
        self._log_probs: dict[History, NDArray[np.float64]] = {}
        _check_names(self.phones)
        for token in range(len(self.phones) + 1):
            if (token,) not in self.entries:
                name = ("the end of a sentence", *self.phones)[token]
                raise ValueError(
                    expected("entries", "a probability of each phone", f"none of {name}")
                )

    @classmethod
    def estimate(
        cls, transcripts: Iterable[Sequence[int]], phones: Sequence[str], order: int = 3
    ) -> NGram:
        """Estimates a model from transcripts by Witten-Bell smoothing; see `witten_bell`.

        Args:
            transcripts: lists of phones from 1 to len(phones).
            phones: the names of the phones.
            order: the length of the longest n-grams.

        Raises:
            ValueError: no transcript, phones out of range, or order below 1.
            TypeError: phones that are not integers.
        """
        order = at_least("order", order, 1)
        sentences = [_tokens(transcript, len(phones)) for transcript in transcripts]
        if not sentences:
            raise ValueError(expected("transcripts", "at least one", "none"))
        return cls(phones, witten_bell(sentences, len(phones) + 1, order))

    @classmethod
    def read(cls, path: str | Path, phones: Sequence[str]) -> NGram:
        """Reads a model from an ARPA file, written by this or another tool.

        Args:
            path: the file.
            phones: the names of the classes 1, 2, ... A phone that is not in the file gets the
                probability of <unk>, or 1e-99 if the file has no <unk>. Longer n-grams with <unk>
                are ignored.

        Raises:
            ValueError: a damaged file (the error names the line), or one with other words (the
                error names the first).
            OSError: the file cannot be read.
        """
        _check_names(phones)
        tokens = {START_WORD: START, END_WORD: END}
        tokens |= {name: token for token, name in enumerate(phones, start=1)}
        unknown, entries = Entry(ZERO), {}
        for words, entry in read_arpa(Path(path)).items():
            if words == (UNKNOWN_WORD,):
                unknown = entry
            elif UNKNOWN_WORD not in words:
                foreign = [word for word in words if word not in tokens]
                if foreign:
                    wanted = f"the {len(phones)} phones of the recognizer alone"
                    raise ValueError(expected(str(path), wanted, quote(foreign[0])))
                entries[tuple(tokens[word] for word in words)] = entry
        missing = {(token,): Entry(unknown.log10) for token in range(len(phones) + 1)}
        return cls(phones, missing | entries)

    def write(self, path: str | Path) -> None:
        """Writes an ARPA file, from which `read` restores every number exactly.

        If writing fails, an older file stays as it was.
        """
        names = (END_WORD, *self.phones, START_WORD)  # START = -1 is the last
        entries = {tuple(names[t] for t in ngram): entry for ngram, entry in self.entries.items()}
        write_arpa(Path(path), entries)

    def perplexity(self, transcripts: Iterable[Sequence[int]]) -> float:
        """exp of the mean of -ln p over all phones and the end of each transcript.

        Raises:
            ValueError: no transcript, or phones out of range.
            TypeError: phones that are not integers.
        """
        logs = []
        for transcript in transcripts:
            state = self.start
            for token in _tokens(transcript, len(self.phones))[1:]:
                logs.append(self.log_probs(state)[token])
                state = self.advance(state, token)
        if not logs:
            raise ValueError(expected("transcripts", "at least one", "none"))
        return math.exp(-np.mean(logs))

    @property
    def start(self) -> History:
        """The state of the empty prefix, for a beam search."""
        return self._state((START,))

    def advance(self, state: History, phone: int) -> History:
        """The state after one more phone."""
        return self._state((*state, phone))

    def log_probs(self, state: History) -> NDArray[np.float64]:
        """(len(phones) + 1,) natural logarithms: of the end at 0, of each phone at its class."""
        if state not in self._log_probs:
            logs = [self._log10(state, token) for token in range(len(self.phones) + 1)]
            self._log_probs[state] = np.array(logs) * math.log(10)
        return self._log_probs[state]

    def _state(self, history: History) -> History:
        """The end of the history on which the next probabilities depend."""
        history = history[max(0, len(history) - self.order + 1) :]
        while history not in self._histories:
            history = history[1:]
        return history

    def _log10(self, history: History, token: int) -> float:
        backed_off = 0.0
        while (entry := self.entries.get((*history, token))) is None:
            if history in self.entries:
                backed_off += self.entries[history].backoff
            history = history[1:]
        return backed_off + entry.log10


def _tokens(transcript: Sequence[int], phones: int) -> list[int]:
    tokens = int_list("phones", transcript)
    outside = [phone for phone in tokens if not 1 <= phone <= phones]
    if outside:
        raise ValueError(expected("phones", f"classes in 1..{phones}", outside[0]))
    return [START, *tokens, END]


def _check_names(phones: Sequence[str]) -> None:
    reserved = {START_WORD, END_WORD, UNKNOWN_WORD}
    bad = [x for x in phones if not isinstance(x, str) or x.split() != [x] or x in reserved]
    if bad or not phones or len(set(phones)) < len(phones):
        wanted = "names without spaces, none twice, other than <s>, </s> and <unk>"
        raise ValueError(expected("phones", wanted, quote(bad[0] if bad else tuple(phones))))


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
