"""What is asked of a batch, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from linattn_core.errors import expected, quote, rename_subject, subject_of
from linattn_models.basics.validation import at_least, boolean, instance
from linattn_models.decoding.generate import GenerationMixin
from linattn_models.decoding.prompts import ENDLESS, read_prompt
from linattn_models.decoding.sampling import Draws, SamplingParams, Settings
from linattn_models.decoding.stopping import Stop, read_stop
from linattn_models.heads import Categorical
from linattn_models.heads.base import log_probabilities
from linattn_models.state import DecodingState, WindowCache, check_fits, check_parameters
from linattn_models.weights.fingerprint import refuse_others

# Names of the arguments of `generate` and `encode`, and the fields that they come from.
_FIELDS = {"prefix": "prompt", "tokens": "prompt", "text": "prompt"}

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt, and how it is continued.

    Args:
        prompt: (P,) or (P, 3) tokens, as a tensor or a list; or a text, for a model with a
            tokenizer. It may be empty.
        length: tokens of a complete sequence, with the prompt but without those that `state` has
            read; by default the model's `max_length` less the tokens that `state` has read.
        sampling: how tokens are drawn.
        stop_tokens: a token that ends a sequence, or several.
        state: of one sequence, which the prompt continues; it is copied.
        return_state: whether the state after the last token of each sequence comes with it. In a
            model with a start vector it takes one more position.
        stop_strings: a text that ends a sequence once its new tokens contain it, or several; for a
            model with a tokenizer.
        logprobs: of how many of the likeliest tokens the log-probabilities come with each token, in
            addition to its own; None for none at all. For a Categorical head.
        prompt_logprobs: whether those of the prompt's tokens come, too. The prompt is then read
            token by token.
    """

    prompt: Tensor | Sequence[Any] | str = ()
    length: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_tokens: int | Sequence[int] | None = None
    state: DecodingState | None = None
    return_state: bool = False
    stop_strings: str | Sequence[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: bool = False


class TokenLogprobs(NamedTuple):
    """Log-probabilities in nats at the place of a token, before its temperature and filters.

    Attributes:
        own: that of the token.
        likeliest: the likeliest tokens with theirs, in order.
    """

    own: float
    likeliest: list[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class Output:
    """New tokens of one sequence.

    Attributes:
        request: the id that `add` returned.
        index: the number of the sequence among the `n` of its request.
        tokens: the new tokens, in order: integers, or lists of three.
        finish_reason: None while the sequence goes on; "stop" after a stop token or string,
            "length" after the last token, and "abort" after `cancel`, or where the model's outputs
            are NaN or its tokenizer fails.
        state: after the last token, if the request wants it and was not aborted.
        logprobs: of each new token, if the request wants them.
        prompt_logprobs: in the first output of a sequence, those of each token of the prompt but
            the first, if the request wants them.
    """

    request: int
    index: int
    tokens: list[Any]
    finish_reason: FinishReason | None = None
    state: DecodingState | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """A request after its checks.

    Attributes:
        prompt: (1, P) or (1, P, 3) tokens.
        new_tokens: the most tokens to draw for each sequence.
        position: of the first token that is drawn; the tokens of the state count.
        settings: how tokens are drawn.
        stop: what ends a sequence before its last token; None for nothing.
        state: where the prompt is continued; None for the start.
        return_state: whether the state is wanted.
        logprobs, prompt_logprobs: as those of the request.
    """

    prompt: Tensor
    new_tokens: int
    position: int
    settings: Settings
    stop: Stop | None
    state: DecodingState | None
    return_state: bool
    logprobs: int | None
    prompt_logprobs: bool

    @property
    def samples(self) -> int:
        """Sequences that are drawn."""
        return self.settings.samples

    def draws(self) -> Draws:
        """The draws of all sequences, from their first token on."""
        length = torch.tensor([self.prompt.shape[1]], device=self.prompt.device)
        positions = torch.tensor([self.position], device=self.prompt.device)
        return self.settings.draws(self.prompt, length, positions, ahead=1)

    def read_logprobs(self, parameters: Tensor, tokens: list[int]) -> list[TokenLogprobs] | None:
        """The log-probabilities of tokens drawn from (N, P) parameters, if they are wanted."""
        if self.logprobs is None:
            return None
        logs = log_probabilities(parameters[: len(tokens)])
        places = torch.tensor(tokens, device=logs.device).unsqueeze(1)
        own = logs.gather(1, places).squeeze(1).tolist()
        most, likeliest = logs.topk(min(self.logprobs, logs.shape[1]))
        pairs = zip(likeliest.tolist(), most.tolist(), strict=True)
        rows = [list(zip(*pair, strict=True)) for pair in pairs]
        return [TokenLogprobs(*row) for row in zip(own, rows, strict=True)]


def read_request(source: GenerationMixin, request: Request, start: DecodingState) -> Task:
    """The request, checked.

    Args:
        source: the model or decoder.
        start: its state before the first token, which has the sizes and the room of all states.
    """
    instance("request", request, Request)
    try:
        return _read(source, request, start)
    except (ValueError, TypeError) as error:  # of checks that `generate` makes, too
        known_as = _FIELDS.get(subject_of(error) or "")
        if known_as is None:
            raise
        raise rename_subject(error, known_as) from None


def _read(source: GenerationMixin, request: Request, start: DecodingState) -> Task:
    state = _read_state(source, request.state, start)
    settings = _read_settings(source, request.sampling)
    prompt = read_prompt(
        source,
        1,
        _as_prefix(request.prompt),
        length=request.length,
        state=state,
        keeps_state=request.return_state,
        room=start.max_length,
    )
    if not prompt.steps:
        wanted = f"more tokens than the {prompt.length} of the prompt"
        raise ValueError(expected("length", wanted, prompt.length))
    stop = read_stop(request.stop_tokens, request.stop_strings, source.head, source.tokenizer)
    position = int(prompt.row_lengths[0]) + int(prompt.tokens_before[0])
    return Task(
        prompt.tokens,
        prompt.steps,
        position,
        settings,
        stop,
        state,
        request.return_state,
        _read_logprobs(source, request),
        request.prompt_logprobs,
    )


def _as_prefix(prompt: Any) -> list[Any] | None:
    """The prompt as the prefixes of a batch of one; None where it is empty."""
    try:
        return [prompt] if len(prompt) else None
    except TypeError:
        wanted = "a text, or a list, an array or a tensor of tokens"
        raise TypeError(expected("prompt", wanted, quote(prompt))) from None


def _read_state(
    source: GenerationMixin, state: DecodingState | None, start: DecodingState
) -> DecodingState | None:
    if state is None:
        return None
    check_fits(state, start)
    if state.fingerprint is not None:
        refuse_others(state.fingerprint, source.fingerprint())
    check_parameters(state, source.head.num_parameters)
    if state.cursor.furthest > ENDLESS:
        raise ValueError(expected("state", f"at most {ENDLESS} positions", state.cursor.furthest))
    rows = {len(x) for layer in state.layers for x in layer}
    parameters = state.parameters
    known = parameters is not None and len(parameters) == 1 and parameters.is_floating_point()
    if rows != {1} or not known:
        advice = "select one row of a state that a model of tokens returned"
        wanted = "that of one sequence with its parameters"
        raise ValueError(expected("state", wanted, f"{state.batch} sequences", advice))
    # A copy, because the caller's may be written; without NaN, which would spread to its tokens.
    if not all(bool(x.isfinite().all()) for layer in state.layers for x in layer):
        raise ValueError(expected("state", "finite numbers", "NaN or infinity"))
    windows = [layer for layer in state.layers if isinstance(layer, WindowCache)]
    if any(bool((window.log_decays > 0).any()) for window in windows):
        raise ValueError(expected("state", "decays of at most 0 beside the keys", "larger ones"))
    return replace(state.detach().clone(), fingerprint=None)


def _read_settings(source: GenerationMixin, params: SamplingParams) -> Settings:
    instance("sampling", params, SamplingParams)
    settings = Settings(params, source.head, source.device)
    for name in settings.differ:
        raise ValueError(expected(name, "one number", "several"))
    return settings


def _read_logprobs(source: GenerationMixin, request: Request) -> int | None:
    count = request.logprobs
    boolean("prompt_logprobs", request.prompt_logprobs)
    if count is None:
        if request.prompt_logprobs:
            raise ValueError(expected("prompt_logprobs", "False without logprobs", True))
        return None
    if not isinstance(source.head, Categorical):
        wanted, got = "None for a model without a Categorical head", quote(count)
        raise ValueError(expected("logprobs", wanted, got))
    return at_least("logprobs", count, 0)
