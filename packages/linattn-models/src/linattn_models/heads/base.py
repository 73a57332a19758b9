"""What an output head is: the distribution that a model's numbers stand for."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from linattn_core.decoding import Draw, Sampler
from linattn_models.validation import in_range


class Head(Protocol):
    """A distribution over one token, given the parameters that a model puts out for it.

    Heads have no weights of their own; the model's last linear layer makes the parameters.

    Attributes:
        kind: the name under which configurations are written.
        levels: values that a channel can take, 0..levels-1.
        channels: values in a token: tokens are (...) for one channel, (..., channels) for more.
        num_parameters: P, the model's outputs for a token.
    """

    kind: ClassVar[str]

    @property
    def levels(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def num_parameters(self) -> int: ...

    def negative_log_likelihood(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        """Nats for a whole token: (..., P) and tokens -> (...)."""

    def sample(
        self,
        parameters: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Tokens drawn from the distributions: (..., P) -> int64 tokens."""

    def initial_bias(self) -> Tensor:
        """(P,) parameters of a sensible distribution to start learning from."""

    def to_dict(self) -> dict[str, Any]:
        """The head as JSON values."""


class Drawn(Protocol):
    """A head whose draws are a choice by random numbers that are drawn apart from it.

    A backend may then make the choice inside a compiled step, from the same numbers.
    """

    def noise(
        self,
        leading: tuple[int, ...],
        temperature: float,
        generator: torch.Generator | None,
        *,
        like: Tensor,
    ) -> Draw:
        """The random numbers for tokens of the `leading` shape, of `like`'s dtype and device."""

    def choose(self, parameters: Tensor, draw: Draw) -> Tensor:
        """The tokens that these numbers draw."""

    def sampler(self) -> Sampler:
        """The head as a backend knows it."""


def check_temperature(temperature: float) -> None:
    """Refuses what is not a number of 0 or more."""
    in_range("temperature", temperature, 0.0, math.inf)


def check_parameters(head: Head, parameters: Tensor) -> None:
    """Refuses parameters of another width."""
    if parameters.ndim == 0 or parameters.shape[-1] != head.num_parameters:
        raise ValueError(
            f"parameters must have shape (..., {head.num_parameters}) and have "
            f"{tuple(parameters.shape)}."
        )


def check_tokens(head: Head, tokens: Tensor, leading: tuple[int, ...] | None = None) -> None:
    """Refuses tokens of another dtype or shape, and on the CPU also values out of range.

    On an accelerator the values are not read: that would stop it at every call.
    """
    if tokens.dtype != torch.int64:
        raise TypeError(f"tokens must be int64 and are {tokens.dtype}; convert them by .long().")
    expected = None if leading is None else (*leading, *token_shape(head))
    if expected is not None and tokens.shape != expected:
        raise ValueError(f"tokens must have shape {expected} and have {tuple(tokens.shape)}.")
    if tokens.device.type != "cpu" or tokens.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= head.levels:
        raise ValueError(f"tokens must lie in 0..{head.levels - 1} and reach from {low} to {high}.")


def check_sequences(head: Head, tokens: Tensor, shortest: int, longest: int) -> None:
    """Refuses what is not (B, N) int64 tokens, or (B, N, 3), with N from shortest to longest."""
    extra = token_shape(head)
    if tokens.ndim != 2 + len(extra) or tuple(tokens.shape[2:]) != extra:
        raise ValueError(
            f"tokens must have shape {('batch', 'length', *extra)} and have {tuple(tokens.shape)}."
        )
    if not shortest <= tokens.shape[1] <= longest:
        raise ValueError(
            f"tokens must be {shortest} to {longest} long here and are {tokens.shape[1]} long."
        )
    check_tokens(head, tokens)


def check_step_shape(head: Head, token: Tensor) -> None:
    """Refuses what is not one token a row, (B,) or (B, 3)."""
    extra = token_shape(head)
    if token.ndim != 1 + len(extra) or tuple(token.shape[1:]) != extra:
        raise ValueError(
            f"A step takes tokens of shape {('batch', *token_shape(head))} and got "
            f"{tuple(token.shape)}."
        )


def token_shape(head: Head) -> tuple[int, ...]:
    """The dimensions that a token adds: none for one channel."""
    return () if head.channels == 1 else (head.channels,)


def at_least_single(parameters: Tensor) -> Tensor:
    """The parameters in float32, float64 if they came so: half precision cannot hold a tail."""
    return parameters if parameters.dtype == torch.float64 else parameters.float()


def new_draw(
    temperature: float,
    generator: torch.Generator | None,
    *,
    like: Tensor,
    waits: tuple[int, ...],
    uniform: tuple[int, ...] | None = None,
) -> Draw:
    """Random numbers of these shapes, of `like`'s dtype and device; none at temperature 0."""
    if temperature == 0:
        return Draw(temperature, None, None)
    empty = None if uniform is None else like.new_empty(uniform)
    draw = Draw(temperature, like.new_empty(waits), empty)
    redraw(draw, generator)
    return draw


def redraw(draw: Draw, generator: torch.Generator | None) -> None:
    """New numbers in the place of a draw's own, in the order in which every head draws them."""
    if draw.waits is not None:
        draw.waits.exponential_(generator=generator)
    if draw.uniform is not None:
        draw.uniform.uniform_(generator=generator)


def choose(logits: Tensor, draw: Draw) -> Tensor:
    """Indices (...) with probability softmax(logits / temperature); at 0 the likeliest.

    The first of the clocks to ring, clock i running at rate exp(logits[i] / temperature); a few
    times faster than torch.multinomial, which is felt at one sequence a time.
    """
    if draw.waits is None:
        return logits.argmax(-1)
    waited = draw.waits.clamp(min=torch.finfo(logits.dtype).tiny)  # 0 would beat any rate
    return (logits / draw.temperature - waited.log_()).argmax(-1)
