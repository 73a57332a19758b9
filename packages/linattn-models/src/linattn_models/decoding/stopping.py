"""Stop tokens, stop strings, and the rows that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import as_ints
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Rows
from linattn_models.decoding.texts import TextParts
from linattn_models.heads import Head
from linattn_models.heads.tokenizer import require_tokenizer
from linattn_models.state import DecodingState

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
    """The end of a row's new text: enough to see each stop string in it.

    Args:
        stop: the strings, and the tokenizer.
        prompt, continues: as those of `TextParts`.
    """

    def __init__(self, stop: Stop, prompt: Sequence[int], continues: bool) -> None:
        self._strings = stop.strings
        self._parts = TextParts(stop.tokenizer, prompt, continues)
        self._before = ""
        self._needed = max(map(len, stop.strings))  # characters

    def add(self, token: int) -> bool:
        """Adds a token; returns whether the text now contains a stop string."""
        text = self._before + self._parts.add(token)
        self._before = text[-self._needed :]
        text += self._parts.waiting
        return any(string in text for string in self._strings)


class RowStop:
    """Finds the token with which a row stops; arguments as those of `TextEnd`."""

    def __init__(self, stop: Stop, prompt: Sequence[int], continues: bool) -> None:
        self._tokens = frozenset(stop.tokens)
        self._text = TextEnd(stop, prompt, continues) if stop.strings else None

    def add(self, token: int) -> bool:
        """Adds a token; returns whether the row stops with it."""
        return token in self._tokens or (self._text is not None and self._text.add(token))


class _Part(NamedTuple):
    """Rows of a batch, their last tokens, and their states before these."""

    rows: Tensor
    tokens: Tensor
    state: DecodingState


class Ends:
    """Follows which sequences have ended, drops their rows, and keeps their states if wanted.

    Rows of sequences that have ended stay for some steps, as long as they are few.

    Args:
        stop: what ends a sequence before its last token.
        prompt: the prompts of all B sequences.
        rows: one of each sequence.
    """

    def __init__(self, stop: Stop, prompt: Prompt, rows: Rows) -> None:
        self._stop = stop
        self._stop_tokens = frozenset(stop.tokens)
        prefixes = prompt.rows if stop.strings else [[]] * prompt.batch
        self._stops = [RowStop(stop, prefix, prompt.continues) for prefix in prefixes]
        self._prompt = prompt
        self._rows = rows
        self._steps = steps = prompt.steps_of_rows
        self._held = torch.arange(prompt.batch, device=steps.device)  # the sequence of each row
        self._going = torch.ones_like(self._held, dtype=torch.bool)  # of each row
        self._all_go_on = True
        self._next_complete = int(steps.min())  # steps after which a sequence is complete
        self._parts: list[_Part] = []  # of the sequences that have ended, if states are kept
        self._is_open = False  # whether `end` was not called yet for the last tokens

    def spread(self) -> Tensor:
        """The tokens of this step as (B,) or (B, 3), -1 for sequences that had ended before."""
        self._is_open = True
        drawn = self._rows.tokens
        if self._all_go_on:
            return drawn
        spread = drawn.new_full((self._prompt.batch, *drawn.shape[1:]), -1)
        ended = ~self._going.view(-1, *[1] * (drawn.ndim - 1))
        spread[self._held] = drawn.masked_fill(ended, -1)
        return spread

    def end(self, step: int) -> bool:
        """Ends sequences that stop or are complete with this step; whether any goes on."""
        stopped = self._find_stops()
        self._is_open = False
        if not any(stopped) and step + 1 < self._next_complete:
            return True
        steps = self._steps[self._held]
        going = self._going & (steps > step + 1)
        if any(stopped):
            going &= ~torch.tensor(stopped, device=going.device)
        ended = (self._going & ~going).nonzero().squeeze(1)
        if self._prompt.keeps_state and len(ended):
            self._parts.append(self._part(ended))
        self._going, left = going, steps[going]
        if not len(left):
            return False
        self._next_complete = int(left.min())
        self._all_go_on = len(left) == self._prompt.batch
        if len(ended) and len(left) <= (1 - _WORTH_DROPPING) * len(going):
            kept = going.nonzero().squeeze(1)
            self._held, self._going = self._held[kept], going[kept]
            self._rows.select_rows(kept)
        return True

    def state(self) -> DecodingState | None:
        """The state of all sequences, in order, after their last tokens; None before a token."""
        parts = self._parts
        if self._is_open:
            parts = [*parts, self._part(self._going.nonzero().squeeze(1))]
        if sum(len(part.rows) for part in parts) < self._prompt.batch:
            return None
        rows, tokens = (
            torch.cat(x) for x in zip(*((p.rows, p.tokens) for p in parts), strict=True)
        )
        state, step = DecodingState.cat([part.state for part in parts]), self._rows.source.step
        has_token = self._prompt.row_ends[rows] > 0
        if bool(has_token.all()):
            return step(tokens, state)[1].index_select(rows.argsort())
        reads, stays = (x.nonzero().squeeze(1) for x in (has_token, ~has_token))
        after = step(tokens[reads], state.index_select(reads))[1]
        order = torch.cat([rows[reads], rows[stays]]).argsort()
        return DecodingState.cat([after, state.index_select(stays)]).index_select(order)

    def _find_stops(self) -> list[bool]:
        """Whether the sequence of each row stops with its token; an empty list for none."""
        if not self._stop_tokens and not self._stop.strings:
            return []
        tokens = self._rows.tokens.tolist()
        # At most steps no row stops; a set of tokens in Python is faster than tensors here.
        if not self._stop.strings and self._stop_tokens.isdisjoint(tokens):
            return []
        rows = zip(self._held.tolist(), tokens, self._going.tolist(), strict=True)
        return [going and self._stops[row].add(token) for row, token, going in rows]

    def _part(self, places: Tensor) -> _Part:
        """These rows, as if they ended now."""
        rows = self._held[places]
        tokens = self._last_tokens(rows, self._rows.tokens[places])
        return _Part(rows, tokens, self._rows.state.index_select(places))

    def _last_tokens(self, rows: Tensor, drawn: Tensor) -> Tensor:
        """The last token of each sequence: the drawn one, or the prefix's if that was complete."""
        prompt = self._prompt
        complete = prompt.steps_of_rows[rows] == 0
        if not prompt.tokens.shape[1] or not bool(complete.any()):
            return drawn
        # Where a sequence draws tokens, its end is beyond its prefix: such a place is not used.
        places = (prompt.row_ends[rows] - 1).clamp(0, prompt.tokens.shape[1] - 1)
        own = prompt.tokens[rows, places]
        return torch.where(complete.view(-1, *[1] * (own.ndim - 1)), own, drawn)


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
