"""The interface of output heads: distributions whose parameters are the outputs of a model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import Sampler
from linattn_core.errors import expected
from linattn_core.values import can_be_read
from linattn_models.basics.validation import in_range, instance

# Lower temperatures count as 0. Logits up to 1e8, divided by this one, are finite in float32.
LEAST_TEMPERATURE = 1e-30
# In float64, differences of logits divided by it are 0 or infinite, so it takes the likeliest.
GREEDY = 1e-300


class Head(ABC):
    """A distribution over one token, with parameters that a model predicts.

    Heads have no weights of their own; the model's last linear layer computes the parameters. A
    head draws by inverting distribution functions at random numbers, so that a backend can draw
    inside a compiled step from the same numbers.

    Attributes:
        kind: the name of the head in saved configurations.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def levels(self) -> int:
        """The number of values of a channel, which are 0..levels-1."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Values in a token: tokens are (...) for one channel, (..., channels) for more."""

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """P, the number of parameters of a token's distribution."""

    @abstractmethod
    def negative_log_likelihood(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        """-log p of each whole token in nats.

        Args:
            parameters: (..., P).
            tokens: (...) int64 in 0..levels-1 for one channel, (..., 3) for three.

        Returns:
            (...), at least float32.

        Raises:
            ValueError, TypeError: other shapes, dtype or values.
        """

    @abstractmethod
    def invert(self, parameters: Tensor, uniform: Tensor, temperature: Tensor) -> Tensor:
        """The tokens (B,) or (B, 3) at which the distribution function reaches `uniform`.

        Args:
            parameters: (B, P).
            uniform: (B, 4) float64 in [0, 1), of which a token needs up to four.
            temperature: (B,) float64, above 0.
        """

    @abstractmethod
    def sampler(self) -> Sampler:
        """The description of the head for a backend."""

    @abstractmethod
    def initial_bias(self) -> Tensor:
        """(P,) the initial bias of the last layer: parameters of a good distribution to start."""

    def sample(
        self,
        parameters: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Tokens drawn from the distributions; the head's class documents the temperature.

        Args:
            parameters: (..., P).
            temperature: 0 takes the likeliest tokens without random numbers; values below 1e-30
                count as 0.
            generator: source of randomness, on the device of the parameters; torch's default one
                by default.

        Returns:
            (...) int64 for one channel, (..., 3) for three.

        Raises:
            ValueError: a negative temperature, or parameters of another width.
        """
        check_parameters(self, parameters)
        check_generator(generator)
        temperature = resolve_temperature(temperature)
        rows = at_least_single(parameters).reshape(-1, parameters.shape[-1])
        uniform = rows.new_zeros(len(rows), 4, dtype=torch.float64)
        if temperature:
            uniform.uniform_(generator=generator)
        tokens = self.invert(rows, uniform, uniform.new_full((len(rows),), temperature or GREEDY))
        return tokens.view(*parameters.shape[:-1], *tokens.shape[1:])

    def to_dict(self) -> dict[str, Any]:
        """The head as JSON values."""
        return {"kind": self.kind, **asdict(cast(Any, self))}


def resolve_temperature(temperature: float) -> float:
    """The temperature; 0 for values so small that logits divided by them would overflow."""
    in_range("temperature", temperature, 0.0, math.inf)
    return temperature if temperature >= LEAST_TEMPERATURE else 0.0


def check_parameters(head: Head, parameters: Tensor) -> None:
    """Refuses parameters of another width."""
    if parameters.ndim == 0 or parameters.shape[-1] != head.num_parameters:
        shape = f"shape (..., {head.num_parameters})"
        raise ValueError(expected("parameters", shape, tuple(parameters.shape)))


def check_tokens(
    head: Head, tokens: Tensor, leading: tuple[int, ...] | None = None, what: str = "tokens"
) -> None:
    """Refuses tokens of another dtype or shape, and on the CPU also values out of range.

    On an accelerator the values are not read, because each call would wait for the device.
    """
    check_dtype(what, tokens)
    if leading is not None and tokens.shape != (*leading, *token_shape(head)):
        shape = (*leading, *token_shape(head))
        raise ValueError(expected(what, f"shape {shape}", tuple(tokens.shape)))
    if tokens.device.type != "cpu" or tokens.numel() == 0 or not can_be_read(tokens):
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= head.levels:
        wanted, advice = f"values in 0..{head.levels - 1}", "there are no others"
        raise ValueError(expected(what, wanted, f"{low} to {high}", advice))


def check_sequences(
    head: Head, tokens: Tensor, shortest: int, longest: int | None, what: str = "tokens"
) -> None:
    """Refuses what is not (B, N) int64 tokens, or (B, N, 3), with N from shortest to longest."""
    check_batch(head, tokens, what)
    length = tokens.shape[1]
    if length < shortest or (longest is not None and length > longest):
        wanted = f"length {shortest}" + (" or more" if longest is None else f" to {longest}")
        raise ValueError(expected(what, wanted, length))
    check_tokens(head, tokens, what=what)


def check_batch(head: Head, tokens: Tensor, what: str = "tokens") -> None:
    """Refuses what is not a tensor (B, N), or (B, N, 3)."""
    _check_shape(head, what, tokens, "batch", "length")


def check_step_shape(head: Head, token: Tensor) -> None:
    """Refuses what is not a tensor (B,), or (B, 3)."""
    _check_shape(head, "a step's tokens", token, "batch")


def token_shape(head: Head) -> tuple[int, ...]:
    """The dimensions that a token adds: none for one channel."""
    return () if head.channels == 1 else (head.channels,)


def _check_shape(head: Head, what: str, tokens: Tensor, *leading: str) -> None:
    if not isinstance(tokens, Tensor):
        raise TypeError(expected(what, "a tensor of int64", f"a {type(tokens).__name__}"))
    extra = token_shape(head)
    if tokens.ndim != len(leading) + len(extra) or tuple(tokens.shape[len(leading) :]) != extra:
        shape = f"shape ({', '.join(map(str, (*leading, *extra)))})"
        raise ValueError(expected(what, shape, tuple(tokens.shape)))


def check_dtype(what: str, tokens: Tensor) -> None:
    """Refuses another dtype than int64."""
    if tokens.dtype != torch.int64:
        raise TypeError(expected(what, "int64", tokens.dtype, "convert them by .long()"))


def at_least_single(parameters: Tensor) -> Tensor:
    """The parameters, half precision cast to float32, as it is too coarse for probabilities."""
    return parameters if parameters.dtype == torch.float64 else parameters.float()


def check_generator(generator: object) -> None:
    """Refuses anything but a torch.Generator or None, such as a seed."""
    if generator is not None:
        advice = "make it by torch.Generator().manual_seed(seed)"
        instance("generator", generator, torch.Generator, advice=advice)


def invert(logits: Tensor, uniform: Tensor, temperature: Tensor) -> Tensor:
    """The first index (B,) up to which softmax(logits / temperature) sums to more than `uniform`.

    In float64, so that the only rounding that counts is that of the logits (B, K). It moves the
    end of an index's interval by at most half the largest relative error of a probability, and
    another index comes out only where `uniform` is between the old end and the new.
    """
    logits = _bounded(logits).double()
    weights = (logits - logits.amax(-1, keepdim=True)).div_(temperature.unsqueeze(-1)).exp_()
    sums = weights.cumsum(-1)
    reached = torch.searchsorted(sums, uniform.unsqueeze(-1) * sums[:, -1:], right=True)
    return reached.squeeze(-1).clamp_(max=logits.shape[-1] - 1)  # NaN is reached nowhere


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax(logits) over the last dimension, at least in float32."""
    return _bounded(at_least_single(logits)).log_softmax(-1)


def _bounded(logits: Tensor) -> Tensor:
    """The logits, where an infinite one, which is certain, is the largest number: no inf - inf."""
    return logits.clamp(max=torch.finfo(logits.dtype).max)
