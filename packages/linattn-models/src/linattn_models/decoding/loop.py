"""The loop over tokens: what rows draw, and the states of those that end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import Draws, NanCheck
from linattn_models.decoding.stopping import ActiveRows, Stop
from linattn_models.state import DecodingState


class Predictor(Protocol):
    """Draws the next token of each row; `append` then adds it to the row.

    Rows that are complete stay at their last position, and their draws are ignored.
    """

    @property
    def state(self) -> DecodingState | None:
        """The state of all rows before the token that was drawn last; None without a state."""

    def draw(self, draws: Draws, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """The parameters (B, P) and tokens (B,) or (B, 3) drawn from them, not yet appended.

        Args:
            draws: how tokens are drawn.
            ahead: how many draws follow, with this one. All have these settings, each token is
                appended unchanged, and `select_rows` is not called between them. A predictor may
                draw them all now; `state` is then the one before the last of these tokens.
        """

    def append(self, token: Tensor) -> None:
        """Appends one token to each row."""

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows only (any number, repeats allowed)."""

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """The state after one more token (B,) or (B, 3) of each row."""


# Prefills a prompt, whose arguments are checked already, and returns the predictor behind it.
Start = Callable[[], Predictor]


class Run:
    """One generation: iterating over it draws the tokens (B,) or (B, 3) of each step.

    Rows that are complete still give tokens, which the caller ignores. Rows that have stopped
    give -1 from then on, and the iteration ends when no row continues.

    Args:
        start: starts the predictor of `prompt`.
        prompt: the prompts.
        draws: how tokens are drawn, for all samples.
        samples: sequences that are drawn from each prompt, which is prefilled once and then forked.
        stop: what ends a sequence before its last token; None for nothing.
        progress: whether to show a progress bar.
        streams: whether each token is wanted as soon as it is drawn; if not, several steps may be
            made at once.

    Attributes:
        sequences: the prompt of every sequence; samples of a prompt are consecutive rows.
    """

    def __init__(
        self,
        start: Start,
        prompt: Prompt,
        draws: Draws,
        samples: int,
        stop: Stop | None,
        *,
        progress: bool,
        streams: bool = False,
    ) -> None:
        self.sequences = prompt.repeat(samples)
        self._ends: Ends | None = None
        self._start = start
        self._prompt = prompt
        self._draws = draws
        self._samples = samples
        self._stop = stop
        self._progress = progress
        self._streams = streams

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Tensor]:
        steps = self._prompt.steps
        if steps == 0:
            return
        predictor = self._start_samples()
        active = self._active_rows()
        if active is not None and self._prompt.keeps_state:
            self._ends = Ends(self.sequences, active, predictor)
        check = NanCheck()
        for step in tqdm(range(steps), desc="generate", unit="step", disable=not self._progress):
            # Several are drawn at once where nothing reads a token before the next is drawn.
            ahead = 1 if self._streams or active is not None else steps - step
            parameters, token = predictor.draw(self._draws, ahead)
            check.add(parameters)
            if self._ends is not None:
                self._ends.drawn = token
            yield token if active is None else active.spread(token)
            if active is not None:
                goes_on = active.end(token, step)
                if self._ends is not None:
                    self._ends.collect()
                if not goes_on:
                    break
                rows = active.drop()
                if rows is not None:
                    predictor.select_rows(rows)
                    self._draws.select_rows(rows)
                    token = token[rows]
            if step + 1 < steps:
                predictor.append(token)
        check.finish()

    @torch.inference_mode()
    def read_state(self) -> DecodingState:
        """The state of every sequence after its tokens so far, if the prompt keeps it; a copy."""
        if self._ends is None or not self._ends.are_complete:
            wanted, advice = "one token that was drawn", "prefill returns the state of prompts"
            raise ValueError(expected("the state of a stream", wanted, "none", advice))
        return self._ends.state()

    def _start_samples(self) -> Predictor:
        predictor = self._start()
        if self._samples > 1:
            rows = torch.arange(self._prompt.batch, device=self._prompt.tokens.device)
            predictor.select_rows(rows.repeat_interleave(self._samples))
        return predictor

    def _active_rows(self) -> ActiveRows | None:
        """None where all rows end together and no state is kept."""
        if self._stop is None and not self._prompt.keeps_state:
            return None
        return ActiveRows(self._stop or Stop(), self.sequences)


class _Ended(NamedTuple):
    """Rows of a batch, their last tokens, and their states before these."""

    rows: Tensor
    tokens: Tensor
    state: DecodingState


class Ends:
    """Collects the state of each sequence when it ends, for `return_state`.

    A state is collected before its last token is read; `state` reads all last tokens in one step.

    Args:
        prompt: the prompts of all rows.
        active: the rows that continue.
        predictor: holds their states.

    Attributes:
        drawn: the tokens of this step in the rows that `active` holds, until they are collected.
    """

    def __init__(self, prompt: Prompt, active: ActiveRows, predictor: Predictor) -> None:
        self._prompt = prompt
        self._active = active
        self._predictor = predictor
        self._ended: list[_Ended] = []
        self.drawn: Tensor | None = None

    @property
    def are_complete(self) -> bool:
        """Whether every row has ended, or has a token of this step."""
        ended = sum(len(part.rows) for part in self._ended)
        return self.drawn is not None or ended == self._prompt.batch

    def collect(self) -> None:
        """Collects the rows that ended at this step."""
        if len(self._active.ended):
            self._ended.append(self._end(self._active.ended))
        self.drawn = None

    def state(self) -> DecodingState:
        """The state of all B rows, in order, after their last tokens."""
        parts = self._ended
        if self.drawn is not None:
            parts = [*parts, self._end(self._active.going)]
        rows, tokens = (
            torch.cat(x) for x in zip(*((p.rows, p.tokens) for p in parts), strict=True)
        )
        state, read = DecodingState.cat([part.state for part in parts]), self._predictor.read
        has_token = self._prompt.row_ends[rows] > 0
        if bool(has_token.all()):
            return read(tokens, state).index_select(rows.argsort())
        reads, stays = (x.nonzero().squeeze(1) for x in (has_token, ~has_token))
        after = read(tokens[reads], state.index_select(reads))
        order = torch.cat([rows[reads], rows[stays]]).argsort()
        return DecodingState.cat([after, state.index_select(stays)]).index_select(order)

    def _end(self, held: Tensor) -> _Ended:
        """The rows `held` of those that the predictor holds, as if they ended now."""
        rows = self._active.held[held]
        tokens = self._last_tokens(rows, cast(Tensor, self.drawn)[held])
        state = cast(DecodingState, self._predictor.state)
        return _Ended(rows, tokens, state.index_select(held))

    def _last_tokens(self, rows: Tensor, drawn: Tensor) -> Tensor:
        """The last token of each row: the drawn one, or the prefix's if that was complete."""
        prompt = self._prompt
        complete = prompt.steps_of_rows[rows] == 0
        if not prompt.tokens.shape[1] or not bool(complete.any()):
            return drawn
        # Where a row draws tokens, its end is beyond its prefix: such a place is not used.
        places = (prompt.row_ends[rows] - 1).clamp(0, prompt.tokens.shape[1] - 1)
        own = prompt.tokens[rows, places]
        return torch.where(complete.view(-1, *[1] * (own.ndim - 1)), own, drawn)
