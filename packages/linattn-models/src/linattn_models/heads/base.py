"""The interface of output heads: the distribution that a model's outputs describe."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from linattn_core.decoding import Draw, Sampler
from linattn_core.errors import expected
from linattn_models.validation import in_range

# Lower temperatures count as 0; divided by this one, logits up to 1e8 stay finite in float32.
_LEAST_TEMPERATURE = 1e-30


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


class Drawn(ABC):
    """A head that chooses tokens by random numbers drawn apart from it.

    A backend may then make the choice inside a compiled step, from the same numbers.
    """

    kind: ClassVar[str]

    def sample(
        self,
        parameters: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Tokens drawn from the distributions; the head's class says how temperature acts.

        Args:
            parameters: (..., P).
            temperature: 0 takes the likeliest tokens and draws nothing; below 1e-30 it is 0.
            generator: source of randomness, on the device of the parameters.

        Returns:
            (...) int64 for one channel, (..., 3) for three.

        Raises:
            ValueError: a negative temperature, or parameters of another width.
        """
        check_parameters(cast(Head, self), parameters)
        parameters = at_least_single(parameters)
        draw = self.noise(parameters.shape[:-1], temperature, generator, like=parameters)
        return self.choose(parameters, draw)

    def noise(
        self,
        leading: tuple[int, ...],
        temperature: float,
        generator: torch.Generator | None,
        *,
        like: Tensor,
    ) -> Draw:
        """The random numbers for tokens of the `leading` shape, of `like`'s dtype and device."""
        temperature = checked_temperature(temperature)
        if temperature == 0:
            return Draw(0.0, None, None)
        waits, uniform = self.noise_sizes
        uniforms = like.new_empty(*leading, uniform) if uniform else None
        draw = Draw(temperature, like.new_empty(*leading, waits), uniforms)
        fill(draw, generator)
        return draw

    @property
    @abstractmethod
    def noise_sizes(self) -> tuple[int, int]:
        """How many numbers a token takes from the exponential and the uniform distribution."""

    @abstractmethod
    def choose(self, parameters: Tensor, draw: Draw) -> Tensor:
        """The tokens that these random numbers draw from the parameters (..., P)."""

    @abstractmethod
    def sampler(self) -> Sampler:
        """The head as a backend knows it."""

    def to_dict(self) -> dict[str, Any]:
        """The head as JSON values."""
        return {"kind": self.kind, **asdict(cast(Any, self))}


def checked_temperature(temperature: float) -> float:
    """The temperature to compute with: 0 where logits divided by it would overflow float32.

    Raises:
        ValueError: not a number of 0 or more.
    """
    in_range("temperature", temperature, 0.0, math.inf)
    return temperature if temperature >= _LEAST_TEMPERATURE else 0.0


def check_parameters(head: Head, parameters: Tensor) -> None:
    """Refuses parameters of another width."""
    if parameters.ndim == 0 or parameters.shape[-1] != head.num_parameters:
        shape = f"shape (..., {head.num_parameters})"
        raise ValueError(expected("parameters", shape, tuple(parameters.shape)))


def check_tokens(
    head: Head, tokens: Tensor, leading: tuple[int, ...] | None = None, what: str = "tokens"
) -> None:
    """Refuses tokens of another dtype or shape, and on the CPU also values out of range.

    On an accelerator the values are not read: that would wait for it at every call.
    """
    _check_dtype(what, tokens)
    if leading is not None and tokens.shape != (*leading, *token_shape(head)):
        shape = (*leading, *token_shape(head))
        raise ValueError(expected(what, f"shape {shape}", tuple(tokens.shape)))
    if tokens.device.type != "cpu" or tokens.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= head.levels:
        wanted, advice = f"values in 0..{head.levels - 1}", "there are no others"
        raise ValueError(expected(what, wanted, f"{low} to {high}", advice))


def check_sequences(
    head: Head, tokens: Tensor, shortest: int, longest: int | None, what: str = "tokens"
) -> None:
    """Refuses what is not (B, N) int64 tokens, or (B, N, 3), with N from shortest to longest."""
    _check_shape(head, what, tokens, "batch", "length")
    length = tokens.shape[1]
    if length < shortest or (longest is not None and length > longest):
        wanted = f"length {shortest}" + (" or more" if longest is None else f" to {longest}")
        raise ValueError(expected(what, wanted, length))
    check_tokens(head, tokens, what=what)


def check_step_shape(head: Head, token: Tensor) -> None:
    """Refuses what is not one int64 token a row, (B,) or (B, 3); reads no values."""
    _check_shape(head, "a step's tokens", token, "batch")
    _check_dtype("tokens", token)


def token_shape(head: Head) -> tuple[int, ...]:
    """The dimensions that a token adds: none for one channel."""
    return () if head.channels == 1 else (head.channels,)


def _check_shape(head: Head, what: str, tokens: Tensor, *leading: str) -> None:
    extra = token_shape(head)
    if tokens.ndim != len(leading) + len(extra) or tuple(tokens.shape[len(leading) :]) != extra:
        shape = f"shape ({', '.join(map(str, (*leading, *extra)))})"
        raise ValueError(expected(what, shape, tuple(tokens.shape)))


def _check_dtype(what: str, tokens: Tensor) -> None:
    if tokens.dtype != torch.int64:
        raise TypeError(expected(what, "int64", tokens.dtype, "convert them by .long()"))


def at_least_single(parameters: Tensor) -> Tensor:
    """The parameters in float32, float64 if they are: half precision cannot hold a tail."""
    return parameters if parameters.dtype == torch.float64 else parameters.float()


def fill(draw: Draw, generator: torch.Generator | None) -> None:
    """Draws new random numbers into a draw's tensors, in the order that all heads share."""
    if draw.waits is not None:
        draw.waits.exponential_(generator=generator)
    if draw.uniform is not None:
        draw.uniform.uniform_(generator=generator)


def choose(logits: Tensor, draw: Draw) -> Tensor:
    """Indices (...) with probability softmax(logits / temperature); at 0 the likeliest.

    The Gumbel-max trick: argmax(logits / temperature - log(waits)), with waits from the exponential
    distribution. It takes a fraction of the time of torch.multinomial for one sequence.
    """
    if draw.waits is None:
        return logits.argmax(-1)
    waits = draw.waits.clamp(min=torch.finfo(logits.dtype).tiny)  # -log(0) would beat any logit
    return (logits / draw.temperature - waits.log_()).argmax(-1)
