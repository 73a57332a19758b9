"""The loop of a generation: its rows, and what ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import as_ints
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Rows, Stepper, read_prompt_rows
from linattn_models.decoding.sampling import Draws, NanCheck
from linattn_models.decoding.texts import TextParts, contexts_of
from linattn_models.heads import Head
from linattn_models.heads.tokenizer import require_tokenizer
from linattn_models.state import DecodingState, remember

# Rows that have ended are dropped from the batch when they are this share of it: dropping copies
# the states, so it is not done for each row.
_WORTH_DROPPING = 0.25
# Steps whose tokens are kept one by one, for the state that is returned.
_MOST_DRAWN = 64


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


class RowStop:
    """Finds the token with which a row stops, in itself or because the text has a stop string.

    Args:
        stop: what ends the row.
        context: as that of `TextParts`.
    """

    def __init__(self, stop: Stop, context: Sequence[int]) -> None:
        self._tokens, self._strings = frozenset(stop.tokens), stop.strings
        self._parts = TextParts(stop.tokenizer, context) if stop.strings else None
        self._before = ""  # the end of the text: enough to see each string in it

    def add(self, token: int) -> bool:
        """Adds a token; returns whether the row stops with it."""
        if self._parts is None or token in self._tokens:
            return token in self._tokens
        text = self._before + self._parts.add(token)
        self._before = text[-max(map(len, self._strings)) :]
        text += self._parts.waiting
        return any(string in text for string in self._strings)


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
        contexts = contexts_of(rows.state) if stop.strings else [[]] * prompt.batch
        self._stops = [RowStop(stop, context) for context in contexts]
        self._prompt = prompt
        self._rows = rows
        self._steps = steps = prompt.steps_of_rows
        self._held = torch.arange(prompt.batch, device=steps.device)  # the sequence of each row
        self._going = torch.ones_like(self._held, dtype=torch.bool)  # of each row
        self._all_go_on = True
        self._next_complete = int(steps.min())  # steps after which a sequence is complete
        self._parts: list[_Part] = []  # of the sequences that have ended, if states are kept

    def take(self, tokens: Tensor, step: int) -> tuple[Tensor, bool]:
        """The tokens (steps, B) or (steps, B, 3) of all sequences, and whether any goes on.

        Args:
            tokens: of the rows, from `step` on; those behind the end of the last one are left out.
        """
        spread, goes_on = [], True
        for now, drawn in enumerate(tokens, step):
            spread.append(self._spread(drawn))
            goes_on = self._end(now, drawn)
            if not goes_on:
                break
        if goes_on:
            self._drop()
        return torch.stack(spread), goes_on

    def _spread(self, drawn: Tensor) -> Tensor:
        """The tokens of a step as (B,) or (B, 3), -1 for sequences that had ended before."""
        if self._all_go_on:
            return drawn
        spread = drawn.new_full((self._prompt.batch, *drawn.shape[1:]), -1)
        ended = ~self._going.view(-1, *[1] * (drawn.ndim - 1))
        spread[self._held] = drawn.masked_fill(ended, -1)
        return spread

    def _end(self, step: int, drawn: Tensor) -> bool:
        """Ends sequences that stop or are complete with this step; whether any goes on."""
        stopped = self._find_stops(drawn)
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
        return True

    def _drop(self) -> None:
        """Drops the rows of sequences that have ended, if they are many."""
        kept = self._going.nonzero().squeeze(1)
        if len(kept) <= (1 - _WORTH_DROPPING) * len(self._going):
            self._held, self._going = self._held[kept], self._going[kept]
            self._rows.select_rows(kept)

    def state(self) -> DecodingState:
        """The state of all sequences, in order, after their last tokens."""
        parts, going = self._parts, self._going.nonzero().squeeze(1)
        if len(going):
            parts = [*parts, self._part(going)]
        rows, tokens = (
            torch.cat(x) for x in zip(*((p.rows, p.tokens) for p in parts), strict=True)
        )
        state, step = DecodingState.cat([part.state for part in parts]), self._rows.source.step
        draws = self._steps[rows] > 0
        if bool(draws.all()):
            return step(tokens, state)[1].index_select(rows.argsort())
        # A sequence that was complete has read its last token.
        reads, stays = (x.nonzero().squeeze(1) for x in (draws, ~draws))
        after = step(tokens[reads], state.index_select(reads))[1]
        order = torch.cat([rows[reads], rows[stays]]).argsort()
        return DecodingState.cat([after, state.index_select(stays)]).index_select(order)

    def _find_stops(self, drawn: Tensor) -> list[bool]:
        """Whether the sequence of each row stops with its token; an empty list for none."""
        if not self._stop_tokens and not self._stop.strings:
            return []
        tokens = drawn.tolist()
        # At most steps no row stops; a set of tokens in Python is faster than tensors here.
        if not self._stop.strings and self._stop_tokens.isdisjoint(tokens):
            return []
        rows = zip(self._held.tolist(), tokens, self._going.tolist(), strict=True)
        return [going and self._stops[row].add(token) for row, token, going in rows]

    def _part(self, places: Tensor) -> _Part:
        """These rows, as if they ended now."""
        tokens, state = self._rows.tokens[places], self._rows.state.index_select(places)
        return _Part(self._held[places], tokens, state)


class Run:
    """One generation: iterating over it draws the tokens (steps, B) or (steps, B, 3) of its steps.

    Rows that are complete still give tokens, which the caller ignores. Rows that have stopped
    give -1 from then on, and the iteration ends when no row continues.

    Args:
        source: makes the steps.
        prompt: the prompts.
        draws: how tokens are drawn, for all samples.
        samples: sequences that are drawn from each prompt, which is prefilled once and then forked.
        stop: what ends a sequence before its last token; None for nothing.
        finish: makes the state that is returned of the one after the last tokens.
        progress: whether to show a progress bar.
        streams: whether each step is wanted as soon as it is made; if not, several may be made at
            once.

    Attributes:
        sequences: the prompt of every sequence; samples of a prompt are consecutive rows.
        state: of all sequences before their first tokens; set by the first step.
    """

    state: DecodingState

    def __init__(
        self,
        source: Stepper,
        prompt: Prompt,
        draws: Draws,
        samples: int,
        stop: Stop | None,
        *,
        finish: Callable[[DecodingState], DecodingState],
        progress: bool,
        streams: bool,
    ) -> None:
        self.sequences = prompt.repeat(samples)
        self._ends: Ends | None = None
        self._source, self._prompt, self._samples = source, prompt, samples
        self._draws, self._stop, self._finish = draws, stop, finish
        self._progress, self._streams = progress, streams
        self._recent: Tensor | None = None
        self._drawn: list[Tensor] = []  # later than those in `_recent`

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Tensor]:
        steps = self._prompt.steps
        if steps == 0:
            return
        parameters, self.state = read_prompt_rows(self._source, self._prompt, self._samples)
        first = self._draws.draw(self._source.head, parameters)
        rows = Rows(self._source, self.state, first, self._draws)
        rows.hold()
        if self._stop is not None or self._prompt.keeps_state:
            self._ends = Ends(self._stop or Stop(), self.sequences, rows)
        self._recent = self.state.recent
        # Several steps are made at once where nothing reads a token or a state in between.
        keeps_states = self._prompt.keeps_state and (self._stop or not self._prompt.ends_together)
        is_single, check = self._streams or keeps_states, NanCheck()
        made, tokens, step = parameters.unsqueeze(0), first.unsqueeze(0), 0
        with tqdm(total=steps, desc="generate", unit="step", disable=not self._progress) as bar:
            while True:
                check.add(made)
                goes_on = True
                if self._ends is not None:
                    tokens, goes_on = self._ends.take(tokens, step)
                    self._keep(tokens, step)
                yield tokens
                bar.update(len(tokens))
                step += len(tokens)
                if not goes_on or step == steps:
                    break
                made, tokens = rows.advance(1 if is_single else steps - step)
        check.finish()

    def read_state(self) -> DecodingState:
        """The state of every sequence after its tokens so far; a copy."""
        with torch.inference_mode():
            state = None if self._ends is None else self._ends.state()
            if state is not None:
                self._remember()
                state = replace(state, recent=self._recent)
        if state is None:
            wanted, advice = "one token that was drawn", "prefill returns the state of prompts"
            raise ValueError(expected("the state of a stream", wanted, "none", advice))
        return self._finish(state)

    def _keep(self, tokens: Tensor, step: int) -> None:
        """Keeps the tokens for the state that is returned, which remembers the last ones."""
        if self._prompt.keeps_state:
            hide = self.sequences.hide_complete
            self._drawn += [hide(now, drawn) for now, drawn in enumerate(tokens, step)]
            if len(self._drawn) >= _MOST_DRAWN:
                self._remember()

    def _remember(self) -> None:
        if self._drawn:
            drawn = torch.stack(self._drawn, 1)
            lengths = None if drawn.ndim > 2 else (drawn >= 0).sum(1)
            self._recent, self._drawn = remember(self._recent, drawn, lengths), []


class TokenStream(Iterator[Any]):
    """The tokens of each step, or their text, as soon as they are drawn; what `stream` returns."""

    def __init__(self, run: Run, tokenizer: Any = None) -> None:
        # Copied outside inference mode, because autograd refuses tensors made inside.
        tokens = (run.sequences.hide_complete(step, token) for step, (token,) in enumerate(run))
        self._run = run
        self._parts = tokens if tokenizer is None else self._read_texts(tokens, tokenizer)

    def __next__(self) -> Any:
        return next(self._parts)

    @property
    def state(self) -> DecodingState:
        """The state after the last token that was yielded; the stream can go on.

        Raises:
            ValueError: a stream without `return_state=True`, or without a token so far.

        Cost: one step.
        """
        if not self._run.sequences.keeps_state:
            wanted = "True for the state of a stream"
            raise ValueError(expected("return_state", wanted, False, "pass it to stream"))
        return self._run.read_state()

    def _read_texts(self, tokens: Iterator[Tensor], tokenizer: Any) -> Iterator[str | list[str]]:
        """The text that each step adds, and then that of characters that no token completes."""
        rows: list[TextParts] = []
        keeps_state = self._run.sequences.keeps_state
        for drawn in tokens:
            if not rows:
                contexts = contexts_of(self._run.state)
                owes = self._run.sequences.owes_text
                rows = [TextParts(tokenizer, *pair) for pair in zip(contexts, owes, strict=True)]
            pairs = zip(rows, drawn.tolist(), strict=True)
            yield _of_rows([row.add(x) if x >= 0 else row.end(keeps_state) for row, x in pairs])
        yield _of_rows([row.end(keeps_state) for row in rows] or [""])


def _of_rows(texts: list[str]) -> str | list[str]:
    return texts if len(texts) > 1 else texts[0]


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
