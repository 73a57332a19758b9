"""A free probability for every token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.decoding import Draw, Sampler
from linattn_models.heads.base import (
    at_least_single,
    check_parameters,
    check_tokens,
    checked_temperature,
    choose,
    new_draw,
)
from linattn_models.validation import at_least


@dataclass(frozen=True)
class Categorical:
    """p(token) = softmax(parameters)[token].

    Args:
        vocabulary: number of tokens; the parameters are as many logits.
    """

    kind: ClassVar[str] = "categorical"

    vocabulary: int

    def __post_init__(self) -> None:
        at_least("vocabulary", self.vocabulary, 2)

    @property
    def levels(self) -> int:
        """Values that a token can take."""
        return self.vocabulary

    @property
    def channels(self) -> int:
        """One value a token."""
        return 1

    @property
    def num_parameters(self) -> int:
        """P, a logit for every token."""
        return self.vocabulary

    def negative_log_likelihood(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        """-log p(token) in nats.

        Args:
            parameters: (..., P) logits.
            tokens: (...) int64 in 0..vocabulary-1.

        Returns:
            (...), at least float32.

        Raises:
            ValueError, TypeError: other shapes, dtype or values.
        """
        check_parameters(self, parameters)
        check_tokens(self, tokens, parameters.shape[:-1])
        logits = at_least_single(parameters).flatten(0, -2)
        return F.cross_entropy(logits, tokens.flatten(), reduction="none").view(tokens.shape)

    def sample(
        self,
        parameters: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Tokens drawn with probability softmax(logits / temperature).

        Args:
            parameters: (..., P) logits.
            temperature: 0 takes the likeliest token and draws nothing.
            generator: source of randomness, on the device of the parameters.

        Returns:
            (...) int64.

        Raises:
            ValueError: a negative temperature, or parameters of another width.
        """
        check_parameters(self, parameters)
        logits = at_least_single(parameters)
        draw = self.noise(logits.shape[:-1], temperature, generator, like=logits)
        return self.choose(logits, draw)

    def noise(
        self,
        leading: tuple[int, ...],
        temperature: float,
        generator: torch.Generator | None,
        *,
        like: Tensor,
    ) -> Draw:
        """The random numbers of a draw.

        Args:
            leading: (...), the shape of the tokens.
            temperature, generator: as for `sample`.
            like: of the logits' dtype and device.

        Raises:
            ValueError: a negative temperature.
        """
        return new_draw(
            checked_temperature(temperature),
            generator,
            like=like,
            waits=(*leading, self.vocabulary),
        )

    def choose(self, logits: Tensor, draw: Draw) -> Tensor:
        """The tokens (...) that these random numbers draw from the logits (..., P)."""
        return choose(logits, draw)

    def sampler(self) -> Sampler:
        """The head for a backend that chooses inside."""
        return Sampler("categorical", self.vocabulary)

    def initial_bias(self) -> Tensor:
        """(P,) zeros: every token as likely as the next."""
        return torch.zeros(self.num_parameters)

    def to_dict(self) -> dict[str, Any]:
        """The head as JSON values."""
        return {"kind": self.kind, **asdict(self)}
