"""Continuous batching: requests wait, are read, and make steps together."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.memory import lacks_memory
from linattn_models.basics.validation import at_least, no_dropout
from linattn_models.decoding.generate import GenerationMixin, TokenModel
from linattn_models.decoding.requests import (
    FinishReason,
    Output,
    Request,
    Task,
    TokenLogprobs,
    read_request,
)
from linattn_models.decoding.rows import Places
from linattn_models.decoding.stopping import RowStop
from linattn_models.decoding.texts import contexts_of
from linattn_models.heads.base import token_shape
from linattn_models.state import RECENT, DecodingState, remember

# Tokens of a prompt that are read between two steps: enough to be limited by arithmetic, few enough
# that the steps of other rows wait little. All but the last chunk of a prompt have so many, so that
# its result does not depend on the other requests.
CHUNK = 48
# The same of a prompt whose log-probabilities are wanted: each of its tokens is a step then, and
# counts as several.
_FEW = 8


@dataclass
class _Reading:
    """A request whose prompt is being read.

    Attributes:
        count: tokens of the prompt that `state` has read.
        logprobs: those of its tokens, but for the first, as far as they are known and wanted.
    """

    request: int
    task: Task
    state: DecodingState
    count: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def read(self, decoder: GenerationMixin, tokens: Tensor) -> None:
        """Reads the next tokens (1, N) of the prompt."""
        begin, self.count = self.count + 1, self.count + tokens.shape[1]
        if not self.task.prompt_logprobs:
            _, self.state = decoder.prefill(tokens, None, self.state)
            return
        rows, recent = [], self.state.recent
        for token in tokens.unbind(1):
            parameters, self.state = decoder.step(token, self.state)
            rows.append(parameters.clone())  # a graph may use their memory again
        self.state = replace(self.state, recent=remember(recent, tokens))
        if following := self.task.prompt[0, begin : self.count + 1].tolist():
            self.logprobs += self.task.read_logprobs(torch.cat(rows), following) or ()


class _Row:
    """One sequence.

    Args:
        reading: its request, whose prompt has been read.
        index: its number among the samples of the request.

    Attributes:
        prompt_logprobs: what its next output has of them.
        left: tokens that it may still draw.
        last: the last tokens that it has drawn, if its state is returned.
    """

    def __init__(self, reading: _Reading, index: int) -> None:
        task, start = reading.task, reading.state
        self.request = reading.request
        self.index = index
        self.task = task
        self.prompt_logprobs = reading.logprobs if task.prompt_logprobs else None
        self.left = task.new_tokens
        self._stop = None if task.stop is None else RowStop(task.stop, contexts_of(start)[0])
        self.start = start
        self.last: list[Any] = []

    def take(self, tokens: list[Any]) -> tuple[list[Any], FinishReason | None]:
        """The new tokens up to the sequence's end, and why it ends; None if it goes on."""
        tokens, stops = tokens[: self.left], False
        if self._stop is not None:
            for count, token in enumerate(tokens, 1):
                if stops := self._stop.add(token):
                    tokens = tokens[:count]
                    break
        self.left -= len(tokens)
        if self.task.return_state:
            self.last = (self.last + tokens)[-RECENT:]
        return tokens, "stop" if stops else None if self.left else "length"


class ContinuousBatch:
    """Draws the tokens of requests that come and go, all in one batch.

        batch = ContinuousBatch(decoder, max_num_seqs=64, max_num_batched_tokens=256)
        batch.add(Request([3, 1, 4], length=100, sampling=SamplingParams(seed=0)))
        while batch.has_work:
            for output in batch.step():
                ...

    Requests start in the order in which they were added, as soon as there are rows for all their
    samples. Between two steps, chunks of 48 tokens of new prompts are read, which take turns.

    A request's tokens depend on its own prompt, settings and seed. With a compiled decoder in
    float32 on the CPU they do not depend on the other requests, bit for bit. Eager models and
    weights of fewer bits round a row of a large batch otherwise than alone, so that another token
    comes out where rounding decides between two.

    Not safe for several threads at once.

    Args:
        decoder: what `compile_decoder` made of a model of tokens; or the model itself, in
            evaluation mode, whose weights must stay as they are.
        max_num_seqs: the most sequences that are stepped together. Their states are allocated once.
        max_num_batched_tokens: the most tokens that a step may read, of prompts and of sequences;
            at least max_num_seqs + 48, which is the default.
        steps_per_call: the most steps that one call of native code makes for all rows, while no
            prompt is read. Sequences that end inside a call have at most so many steps too many.

    Raises:
        ValueError, TypeError: numbers out of range, more states than fit into memory, or a model
            that cannot step.

    Cost: a step of linear attention costs the same at every position. Memory: the states of
    max_num_seqs rows, and 8 KiB of random numbers for each.
    """

    def __init__(
        self,
        decoder: GenerationMixin,
        max_num_seqs: int,
        max_num_batched_tokens: int | None = None,
        steps_per_call: int = 64,
    ) -> None:
        self.max_num_seqs = at_least("max_num_seqs", max_num_seqs, 1)
        least = self.max_num_seqs + CHUNK
        most = least if max_num_batched_tokens is None else max_num_batched_tokens
        self.max_num_batched_tokens = at_least("max_num_batched_tokens", most, least)
        self.steps_per_call = at_least("steps_per_call", steps_per_call, 1)
        if not isinstance(decoder, GenerationMixin):
            wanted = "a CompiledDecoder or a model of tokens"
            raise TypeError(expected("decoder", wanted, f"a {type(decoder).__name__}"))
        if isinstance(decoder, TokenModel):
            no_dropout(decoder.training, decoder.config.dropout)
        self.decoder: Any = decoder
        self._start = _read_start(self.decoder)
        try:
            self._places = Places(decoder, self._start, self.max_num_seqs, decoder.device)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            wanted = "sequences whose states fit into memory"
            got, advice = self.max_num_seqs, "pass a smaller number"
            raise ValueError(expected("max_num_seqs", wanted, got, advice)) from error
        self._waiting: deque[tuple[int, Task]] = deque()
        self._reading: deque[_Reading] = deque()
        self._outputs: list[Output] = []
        self._ids = 0

    def add(self, request: Request) -> int:
        """Adds a request, and returns its id.

        Raises:
            ValueError, TypeError: a wrong field of the request, named first in the message.
        """
        task = read_request(self.decoder, request, self._start)
        if task.samples > self.max_num_seqs:
            wanted = f"at most the {self.max_num_seqs} sequences of the batch"
            raise ValueError(expected("n", wanted, task.samples))
        self._ids += 1
        self._waiting.append((self._ids, task))
        return self._ids

    def cancel(self, request: int) -> bool:
        """Ends a request; its rows are free at once. Returns whether it had not ended before.

        The next step returns an output with "abort" for each of its sequences that had not ended.
        """
        before = len(self._outputs)
        for waiting in [x for x in self._waiting if x[0] == request]:
            self._waiting.remove(waiting)
            self._abort_all(request, waiting[1])
        for reading in [x for x in self._reading if x.request == request]:
            self._reading.remove(reading)
            self._abort_all(request, reading.task)
        for place, row in self._places.active():
            if row.request == request:
                self._end(place, row, [], "abort")
        return len(self._outputs) > before

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._outputs or self.num_requests_waiting or self.num_seqs_running)

    @property
    def requests(self) -> set[int]:
        """The ids of the requests that have not ended."""
        own = {request for request, _ in self._waiting}
        own |= {reading.request for reading in self._reading}
        return own | {row.request for _, row in self._places.active()}

    @property
    def num_seqs_running(self) -> int:
        """Sequences that draw tokens."""
        return self._places.count

    @property
    def state_nbytes(self) -> int:
        """Bytes of the state of one sequence, which are allocated for all of its tokens."""
        return self._start.nbytes

    @property
    def num_requests_waiting(self) -> int:
        """Requests without a token so far."""
        return len(self._waiting) + len(self._reading)

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Reads parts of new prompts, and makes one or more steps of all sequences.

        Returns:
            The new tokens of each sequence that has some, and the ends of sequences.
        """
        self._admit()
        is_reading = bool(self._reading)
        self._read(self.max_num_batched_tokens - self.num_seqs_running)
        if self.num_seqs_running:
            self._places.compact()
            self._draw(1 if is_reading or self._reading else self.steps_per_call)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _admit(self) -> None:
        """Starts to read the prompts of requests for which there are rows."""
        free = self.max_num_seqs - self.num_seqs_running
        free -= sum(reading.task.samples for reading in self._reading)
        while self._waiting and self._waiting[0][1].samples <= free:
            request, task = self._waiting.popleft()
            state = self._start if task.state is None else task.state
            self._reading.append(
                _Reading(request, task, state.with_room(self._start.max_length).clone())
            )
            free -= task.samples

    def _read(self, budget: int) -> None:
        """Reads chunks of at most `budget` tokens with the first draws; the prompts take turns."""
        while self._reading:
            reading = self._reading[0]
            prompt, count = reading.task.prompt, reading.task.samples
            most = _FEW if reading.task.prompt_logprobs else CHUNK
            tokens = prompt[:, reading.count : reading.count + most]
            is_last = reading.count + tokens.shape[1] == prompt.shape[1]
            budget -= tokens.shape[1] * CHUNK // most + (count if is_last else 0)
            if budget < 0:
                return
            if tokens.shape[1]:
                reading.read(self.decoder, tokens)
            self._reading.popleft()
            if is_last:
                self._join(reading)
            else:
                self._reading.append(reading)  # so a long prompt does not hold up the others

    def _join(self, reading: _Reading) -> None:
        """Gives the sequences of a request their rows and first tokens."""
        try:
            rows = [_Row(reading, index) for index in range(reading.task.samples)]
        except ValueError:  # the tokenizer cannot decode the prompt
            self._abort_all(reading.request, reading.task)
            return
        parameters = cast(Tensor, reading.state.parameters)
        draws = reading.task.draws()
        tokens = draws.draw(self.decoder.head, parameters.expand(len(rows), -1))
        places = self._places.join(rows, reading.state, tokens, draws)
        is_valid = not bool(parameters.isnan().any())
        for place, row, token in zip(places, rows, tokens.tolist(), strict=True):
            self._take(place, row, [token], parameters if is_valid else None)

    def _draw(self, most: int) -> None:
        """Makes up to `most` steps of all rows."""
        parameters, tokens = self._places.advance(self._most_steps(most))
        drawn = tokens.tolist()
        # The largest number is NaN if any is.
        is_valid = [True] * len(drawn[0])
        if bool(parameters.amax().isnan()):
            is_valid = (~parameters.isnan().any(-1).any(0)).tolist()
        for place, row in self._places.active():
            own = parameters[:, place] if is_valid[place] else None
            self._take(place, row, [step[place] for step in drawn], own)

    def _most_steps(self, most: int) -> int:
        """At most `most`: none after the end of all rows, or of one whose state is returned."""
        rows = [row for _, row in self._places.active()]
        most = min(most, max(row.left for row in rows))
        for row in rows:
            # The state after the last token is that of the call, so no step may follow.
            if row.task.return_state:
                most = min(most, 1 if row.task.stop else row.left)
        return most

    def _take(self, place: int, row: _Row, tokens: list[Any], parameters: Tensor | None) -> None:
        """Adds the tokens of a row up to its end, drawn from (N, P); None if one is NaN."""
        if parameters is None:
            self._end(place, row, [], "abort")
            return
        try:
            tokens, reason = row.take(tokens)
        except ValueError:  # the tokenizer cannot decode them
            self._end(place, row, [], "abort")
            return
        logprobs = row.task.read_logprobs(parameters, tokens)
        if reason is None:
            self._add_output(row, tokens, logprobs=logprobs)
        else:
            self._end(place, row, tokens, reason, logprobs)

    def _end(
        self,
        place: int,
        row: _Row,
        tokens: list[Any],
        reason: FinishReason,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> None:
        """Ends a row, and frees its place."""
        state = None
        if row.task.return_state and reason != "abort":
            state = self._step_alone(self._places.state_of(place), row)
        self._add_output(row, tokens, reason, state, logprobs)
        self._places.leave(place)

    def _add_output(
        self,
        row: _Row,
        tokens: list[Any],
        reason: FinishReason | None = None,
        state: DecodingState | None = None,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> None:
        prompt, row.prompt_logprobs = row.prompt_logprobs, None
        prompt = None if reason == "abort" else prompt  # they may be NaN
        output = Output(row.request, row.index, tokens, reason, state, logprobs, prompt)
        self._outputs.append(output)

    def _step_alone(self, state: DecodingState, row: _Row) -> DecodingState:
        """The state of one sequence after its last token."""
        last = torch.tensor([row.last], device=self.decoder.device)
        state = cast(DecodingState, self.decoder.step(last[:, -1], state)[1])
        fingerprint, recent = self.decoder.fingerprint(), remember(row.start.recent, last)
        with torch.inference_mode(False):
            # Copied, because autograd refuses tensors made in inference mode.
            return replace(state, fingerprint=fingerprint, recent=recent).clone()

    def _abort_all(self, request: int, task: Task) -> None:
        self._outputs += [Output(request, i, [], "abort") for i in range(task.samples)]


@torch.inference_mode()
def _read_start(decoder: Any) -> DecodingState:
    """The state of one sequence before its first token."""
    tokens = torch.zeros(1, 0, *token_shape(decoder.head), dtype=torch.int64, device=decoder.device)
    state: DecodingState = decoder.prefill(tokens)[1]
    return replace(state, fingerprint=None)
