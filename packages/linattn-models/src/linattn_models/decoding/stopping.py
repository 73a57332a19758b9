"""Stop tokens, stop strings, and the rows that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.texts import TextParts
from linattn_models.heads import Head
from linattn_models.tokenizer import require_tokenizer
from linattn_models.validation import as_ints

# Rows that have ended are dropped from the batch when they are this share of it: dropping copies
# the states, so it is not done for each row.
_WORTH_DROPPING = 0.25


@dataclass(frozen=True)
class Stop:
    """What ends a sequence.

    Attributes:
        tokens: each ends it.
        strings: each ends it, once the text of the sequence's new tokens contains it.
        tokenizer: makes the text.
    """

    tokens: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    tokenizer: Any = None


class TextEnd:
    """The end of a row's text: enough to see each stop string in it."""

    def __init__(self, stop: Stop) -> None:
        self._strings = stop.strings
        self._parts = TextParts(stop.tokenizer)
        self._before = ""
        self._needed = max(map(len, stop.strings))  # characters

    def add(self, token: int) -> bool:
        """Adds a token; returns whether the text now contains a stop string."""
        text = self._before + self._parts.add(token)
        self._before = text[-self._needed :]
        text += self._parts.waiting
        return any(string in text for string in self._strings)


class ActiveRows:
    """Tracks which rows of a batch continue: they are not complete and have not stopped.

    The predictor holds the rows that continue, and for some steps a few that have ended.

    Args:
        stop: what ends a sequence before its last token.
        prompt: the prompts of all B rows.

    Attributes:
        held: (R,) int64, the rows of the batch that the predictor holds.
        ended: int64 indices into `held` of the rows that ended at the last step.
    """

    def __init__(self, stop: Stop, prompt: Prompt) -> None:
        self._stop_tokens = frozenset(stop.tokens)
        self._texts = [TextEnd(stop) for _ in range(prompt.batch)] if stop.strings else []
        self._steps = prompt.steps_of_rows
        self._batch = batch = prompt.batch
        self.held = torch.arange(batch, device=self._steps.device)
        self._going = torch.ones(batch, dtype=torch.bool, device=self._steps.device)  # of `held`
        self._all_go_on = True
        self._next_complete = int(self._steps.min())  # steps after which a row is complete
        self.ended = self.held[:0]

    @property
    def going(self) -> Tensor:
        """int64 indices into `held` of the rows that continue."""
        return self._going.nonzero().squeeze(1)

    def spread(self, drawn: Tensor) -> Tensor:
        """The tokens of the held rows as (B,) or (B, 3), -1 in rows that had ended before."""
        if self._all_go_on:
            return drawn
        spread = drawn.new_full((self._batch, *drawn.shape[1:]), -1)
        ended = ~self._going.view(-1, *[1] * (drawn.ndim - 1))
        spread[self.held] = drawn.masked_fill(ended, -1)
        return spread

    def end(self, drawn: Tensor, step: int) -> bool:
        """Marks rows that have stopped or are complete; returns whether any row continues."""
        stopped = self._find_stops(drawn)
        if not any(stopped) and step + 1 < self._next_complete:
            self.ended = self.ended[:0]
            return True
        steps = self._steps[self.held]
        going = self._going & (steps > step + 1)
        if any(stopped):
            going &= ~torch.tensor(stopped, device=going.device)
        self.ended = (self._going & ~going).nonzero().squeeze(1)
        self._going = going
        left = steps[going]
        if not len(left):
            return False
        self._next_complete = int(left.min())
        self._all_go_on = len(left) == self._batch
        return True

    def drop(self) -> Tensor | None:
        """Drops ended rows where it is worth it: the indices into `held` to keep, else None."""
        if not len(self.ended):
            return None
        going = self.going
        if len(going) > (1 - _WORTH_DROPPING) * len(self._going):
            return None
        self.held, self._going = self.held[going], self._going[going]
        return going

    def _find_stops(self, drawn: Tensor) -> list[bool]:
        """Whether each held row stops with the token that it drew; an empty list for none."""
        if not self._stop_tokens and not self._texts:
            return []
        tokens = drawn.tolist()
        # At most steps no row stops; a set of tokens in Python is faster than tensors here.
        is_token = not self._stop_tokens.isdisjoint(tokens)
        stopped = [token in self._stop_tokens for token in tokens] if is_token else []
        if not self._texts:
            return stopped
        rows = zip(self.held.tolist(), tokens, self._going.tolist(), strict=True)
        by_text = [going and self._texts[row].add(token) for row, token, going in rows]
        return [one or other for one, other in zip_longest(by_text, stopped, fillvalue=False)]


def read_stop(
    tokens: int | Sequence[int] | None,
    strings: str | Sequence[str] | None,
    head: Head,
    tokenizer: Any,
) -> Stop | None:
    """What ends a sequence, checked; None for nothing."""
    stop = Stop(read_stop_tokens(tokens, head), _read_strings(strings, tokenizer), tokenizer)
    return stop if stop.tokens or stop.strings else None


def read_stop_tokens(stop: int | Sequence[int] | None, head: Head) -> tuple[int, ...]:
    """The tokens, checked."""
    if stop is None:
        return ()
    tokens = as_ints("stop_tokens", stop)
    if head.channels > 1:
        got = f"{head.channels} values a token"
        raise ValueError(expected("stop_tokens", "a model with one value a token", got))
    for token in tokens:
        if not 0 <= token < head.levels:
            raise ValueError(expected("stop_tokens", f"tokens in 0..{head.levels - 1}", token))
    return tuple(tokens)


def _read_strings(strings: str | Sequence[str] | None, tokenizer: Any) -> tuple[str, ...]:
    if strings is None:
        return ()
    require_tokenizer("stop_strings", tokenizer)
    several = (strings,) if isinstance(strings, str) else strings
    if not isinstance(several, list | tuple) or not all(isinstance(x, str) for x in several):
        raise TypeError(expected("stop_strings", "a string or a list of them", quote(strings)))
    if "" in several:
        advice = "every text contains it"
        raise ValueError(expected("stop_strings", "strings of at least a character", "''", advice))
    return tuple(several)
