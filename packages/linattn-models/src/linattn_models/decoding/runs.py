"""The loop over tokens: what is drawn, and one generation of it."""

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
    """What is drawn, checked.

    Attributes:
        source: of the tokens.
        prompt: what is prefilled.
        samples: sequences that are drawn from each of its rows.
        stop: (S,) tokens that end a sequence.
        begin: makes the predictor.
    """

    source: Drawable
    prompt: Prompt
    samples: int
    sampling: Sampling
    stop: Tensor | None
    begin: Begin
    progress: bool

    def stopping(self) -> Stopping | None:
        """What ends sequences one by one; None where all end together and leave no state."""
        if self.stop is None and not self.prompt.keeps_state:
            return None
        none = self.prompt.tokens.new_empty(0)
        return Stopping(none if self.stop is None else self.stop, self.sequences)

    @cached_property
    def sequences(self) -> Prompt:
        """The beginning of every sequence that is drawn, those of one prompt side by side."""
        return self.prompt.repeated(self.samples)

    def predictor(self) -> Predictor:
        """What predicts each of the `sequences`: prompts are prefilled once and then forked."""
        predictor = self.begin(self.prompt)
        if self.samples > 1:
            rows = torch.arange(self.prompt.batch, device=self.prompt.tokens.device)
            predictor.keep(rows.repeat_interleave(self.samples))
        return predictor


class Run:
    """One generation: iterating draws the tokens (B,) or (B, 3) of each step.

    Those of complete rows are among them. Rows that have drawn a stop token give -1 from then on,
    and when none goes on the steps end.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
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
            parameters, token = predictor.draw(plan.sampling)
            check.add(parameters)
            yield token if stopping is None else stopping.spread(token)
            if stopping is not None:
                goes_on = stopping.end(token, step)
                if ends is not None and predictor.state is not None:
                    ends.add(stopping, token, predictor.state)
                if not goes_on:
                    break
                kept = stopping.drop()
                if kept is not None:
                    predictor.keep(kept)
                    token = token[kept]
            if step + 1 < steps:
                predictor.take(token)
        check.finish()
        if ends is not None:
            self._final = ends.state(predictor.read)

    def state(self) -> DecodingState:
        """The state after the last tokens, once all are drawn and if the plan keeps it."""
        final = cast(DecodingState, self._final)
        room = self.plan.source.longest
        if any(isinstance(layer, KeyValueCache) for layer in final.layers):
            room = max(final.max_length or 0, self.plan.source.max_length or 0)
        # Copied outside inference mode, because autograd refuses tensors made inside.
        return final.with_room(room).clone()
