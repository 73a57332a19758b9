"""The categorical head: one probability for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.decoder_spec import Sampler
from linattn_models.basics.validation import fields_at_least
from linattn_models.heads.base import (
    Head,
    at_least_single,
    check_parameters,
    check_tokens,
    invert,
    resolve_temperature,
)
from linattn_models.heads.filters import Filters
from linattn_models.heads.settings import PerRow


@dataclass(frozen=True)
class Categorical(Head):
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
        return self.vocabulary

    @property
    def channels(self) -> int:
        return 1

    @property
    def num_parameters(self) -> int:
        return self.vocabulary

    def negative_log_likelihood(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        check_parameters(self, parameters)
        check_tokens(self, tokens, parameters.shape[:-1])
        logits = at_least_single(parameters).reshape(-1, self.num_parameters)
        return F.cross_entropy(logits, tokens.flatten(), reduction="none").view(tokens.shape)

    def sample(
        self,
        parameters: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        top_k: int | Sequence[int | None] | Tensor | None = None,
        top_p: PerRow | None = None,
        min_p: PerRow | None = None,
    ) -> Tensor:
        """Tokens drawn from softmax(parameters / temperature).

        Args:
            parameters, temperature, generator: as for every head.
            top_k, top_p, min_p: which tokens may be drawn, as for `generate`; a number, or one for
                each of the distributions in order.

        Returns:
            (...) int64.

        Raises:
            ValueError: a setting out of range, or parameters of another width.
        """
        filters = Filters(top_k, top_p, min_p)
        if filters:
            check_parameters(self, parameters)
            rows = at_least_single(parameters).reshape(-1, self.vocabulary)
            filters = filters.spread(len(rows), 1, rows.device)
            rows = filters(rows, resolve_temperature(temperature))
            parameters = rows.view(parameters.shape)
        return super().sample(parameters, temperature=temperature, generator=generator)

    def invert(self, parameters: Tensor, uniform: Tensor, temperature: Tensor) -> Tensor:
        """The tokens (B,) at which the sum of the probabilities, in order, exceeds `uniform`."""
        return invert(parameters, uniform[:, 0], temperature)

    def sampler(self) -> Sampler:
        return Sampler("categorical", self.vocabulary)

    def initial_bias(self) -> Tensor:
        return torch.zeros(self.num_parameters)
