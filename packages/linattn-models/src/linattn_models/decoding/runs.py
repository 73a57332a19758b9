"""The loop over tokens: `Plan` says what to draw, `Run` draws it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_models.decoding.model import Drawable
from linattn_models.decoding.predictors import Begin, Predictor
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import NanCheck, Sampling
from linattn_models.decoding.stopping import Ends, Stopping
from linattn_models.state import DecodingState, KeyValueCache


@dataclass(frozen=True)
class Plan:
    """The checked arguments of one generation.

    Attributes:
        source: the model or decoder that gives the tokens.
        prompt: the prompts.
        samples: sequences that are drawn from each prompt.
        sampling: how tokens are drawn.
        stop: (S,) int64, tokens that end a sequence; None for none.
        begin: makes the predictor.
        progress: whether to show a progress bar.
    """

    source: Drawable
    prompt: Prompt
    samples: int
    sampling: Sampling
    stop: Tensor | None
    begin: Begin
    progress: bool

    def stopping(self) -> Stopping | None:
        """Tracks which sequences have ended; None where all end together and no state is kept."""
        if self.stop is None and not self.prompt.keeps_state:
            return None
        none = self.prompt.tokens.new_empty(0)
        return Stopping(none if self.stop is None else self.stop, self.sequences)

    @cached_property
    def sequences(self) -> Prompt:
        """The prompt of every sequence that is drawn; samples of a prompt are consecutive rows."""
        return self.prompt.repeated(self.samples)

    def predictor(self) -> Predictor:
        """The predictor of all `sequences`: each prompt is prefilled once and then forked."""
        predictor = self.begin(self.prompt)
        if self.samples > 1:
            rows = torch.arange(self.prompt.batch, device=self.prompt.tokens.device)
            predictor.keep(rows.repeat_interleave(self.samples))
        return predictor


class Run:
    """One generation: iterating over it draws the tokens (B,) or (B, 3) of each step.

    Rows that are complete still give tokens, which the caller ignores. Rows that have drawn a stop
    token give -1 from then on, and the iteration ends when no row continues.

    Args:
        plan: what to draw.
        streams: whether each token is wanted as soon as it is drawn; if not, several steps may be
            made at once.
    """

    def __init__(self, plan: Plan, *, streams: bool = False) -> None:
        self.plan = plan
        self._streams = streams
        self._final: DecodingState | None = None

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Tensor]:
        plan, steps = self.plan, self.plan.prompt.steps
        if steps == 0:
            return
        predictor = plan.predictor()
        stopping = plan.stopping()
        ends = Ends(plan.sequences) if plan.prompt.keeps_state else None
        check = NanCheck()
        for step in tqdm(range(steps), desc="generate", unit="step", disable=not plan.progress):
            # Several are drawn at once where nothing reads a token before the next is drawn.
            ahead = 1 if self._streams or stopping is not None else steps - step
            parameters, token = predictor.draw(plan.sampling, ahead)
            check.add(parameters)
            yield token if stopping is None else stopping.spread(token)
            if stopping is not None:
                goes_on = stopping.end(token, step)
                if ends is not None and predictor.state is not None:
                    ends.add(stopping, token, predictor.state)
                if not goes_on:
                    break
                going = stopping.drop()
                if going is not None:
                    predictor.keep(going)
                    token = token[going]
            if step + 1 < steps:
                predictor.take(token)
        check.finish()
        if ends is not None:
            self._final = ends.state(predictor.read)

    def state(self) -> DecodingState:
        """The state after the last tokens: after the iteration, if the plan keeps the state."""
        final = cast(DecodingState, self._final)
        room = self.plan.source.longest
        if any(isinstance(layer, KeyValueCache) for layer in final.layers):
            room = max(final.max_length or 0, self.plan.source.max_length or 0)
        # Copied outside inference mode, because autograd refuses tensors made inside.
        return final.with_room(room).clone()
