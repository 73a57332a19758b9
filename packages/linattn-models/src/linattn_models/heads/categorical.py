"""The categorical head: one probability for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.decoder_spec import Draw, Sampler
from linattn_models.heads.base import Drawn, at_least_single, check_parameters, check_tokens, choose
from linattn_models.validation import fields_at_least


@dataclass(frozen=True)
class Categorical(Drawn):
    """p(token) = softmax(parameters)[token]; samples follow softmax(parameters / temperature).

    Args:
        vocabulary: the number of tokens; the parameters are one logit for each.
    """

    kind: ClassVar[str] = "categorical"

    vocabulary: int

    def __post_init__(self) -> None:
        fields_at_least(self, 2, "vocabulary")

    @property
    def levels(self) -> int:
        """Values that a token can take."""
        return self.vocabulary

    @property
    def channels(self) -> int:
        """1: a token has one value."""
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
        logits = at_least_single(parameters).reshape(-1, self.num_parameters)
        return F.cross_entropy(logits, tokens.flatten(), reduction="none").view(tokens.shape)

    @property
    def noise_sizes(self) -> tuple[int, int]:
        """One exponential number for every token, no uniform one."""
        return self.vocabulary, 0

    def choose(self, logits: Tensor, draw: Draw) -> Tensor:
        """The tokens (...) that these random numbers draw from the logits (..., P)."""
        return choose(logits, draw)

    def sampler(self) -> Sampler:
        """The head for a backend that chooses inside."""
        return Sampler("categorical", self.vocabulary)

    def initial_bias(self) -> Tensor:
        """(P,) zeros: every token as likely as the next."""
        return torch.zeros(self.num_parameters)
