"""The discretized mixture of logistics, for intensities: near levels have near probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.decoder_spec import Sampler
from linattn_core.errors import expected
from linattn_models.basics.validation import fields_at_least
from linattn_models.heads.base import (
    Head,
    at_least_single,
    check_parameters,
    check_tokens,
    invert,
)

_LOWEST_LOG_SCALE = -7.0


class _Mixture(NamedTuple):
    """The parameters by kind.

    Attributes:
        logits: (..., K).
        means, log_scales: (..., C, K).
        coefficients: (..., 3, K), of green on red, blue on red, blue on green; None for C = 1.
    """

    logits: Tensor
    means: Tensor
    log_scales: Tensor
    coefficients: Tensor | None


@dataclass(frozen=True)
class MixtureOfLogistics(Head):
    """p(token) = sum_k pi_k prod_c (mass of logistic(mean_ck, scale_ck) on the level's bin).

    As in PixelCNN++, which the paper follows. Levels 0..levels-1 are equally spaced in [-1, 1]; a
    bin reaches half-way to the neighboring levels, the first one to minus infinity and the last one
    to infinity, so the probabilities of all levels sum to 1. With three channels the mean of green
    depends on the red value and that of blue on both, by coefficients in (-1, 1). A sample draws a
    component from softmax(logits / temperature) and a value with temperature * scale; at
    temperature 0 it is the mean of the component with the largest weight.

    Args:
        num_mixtures: K.
        channels: C, 1 or 3.
        levels: values that a channel takes.
    """

    kind: ClassVar[str] = "mixture_of_logistics"

    num_mixtures: int = 10
    channels: int = 1
    levels: int = 256

    def __post_init__(self) -> None:
        fields_at_least(self, 1, "num_mixtures", "channels")
        fields_at_least(self, 2, "levels")
        if self.channels not in (1, 3):
            raise ValueError(expected("channels", "1 or 3", self.channels))

    @property
    def num_parameters(self) -> int:
        """P: K logits, C K means, C K log-scales, and for three channels 3 K coefficients."""
        return self.num_mixtures * (4 + 6 if self.channels == 3 else 3)

    def negative_log_likelihood(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        """As for every head, all channels together; finite, and so are its gradients."""
        check_parameters(self, parameters)
        check_tokens(self, tokens, parameters.shape[:-1])
        mixture = self._split(self._rows(at_least_single(parameters)))
        channels = tokens.unsqueeze(-1) if self.channels == 1 else tokens
        x = self._to_unit(channels, mixture.means.dtype)  # (..., C)
        log_mass = self._log_mass(
            channels.unsqueeze(-1),
            x.unsqueeze(-1) - _condition_means(mixture, x),
            mixture.log_scales,
        )  # (..., C, K)
        log_weights = torch.log_softmax(mixture.logits, -1)
        return -torch.logsumexp(log_weights + log_mass.sum(-2), -1)

    def invert(self, parameters: Tensor, uniform: Tensor, temperature: Tensor) -> Tensor:
        """The tokens at which the distribution functions of component and values reach these."""
        rows = self._rows(parameters)
        chosen = invert(rows[..., 0, :], uniform[:, 0], temperature)
        noise = _logistic(uniform[:, 1 : 1 + self.channels]) * temperature.unsqueeze(-1)
        return self._tokens_of(rows, chosen, noise.to(rows.dtype))

    def _tokens_of(self, rows: Tensor, chosen: Tensor, noise: Tensor) -> Tensor:
        """The tokens of the chosen components (...), with logistic noise (..., C)."""
        index = chosen[..., None, None].expand(*rows.shape[:-1], 1)
        mixture = self._split(rows.gather(-1, index))  # of the chosen component alone
        scales = mixture.log_scales.squeeze(-1).exp()  # (..., C)
        values = mixture.means.squeeze(-1) + noise * scales
        return self._to_tokens(values, mixture.coefficients)

    def sampler(self) -> Sampler:
        return Sampler("mixture_of_logistics", self.num_mixtures, _LOWEST_LOG_SCALE)

    def initial_bias(self) -> Tensor:
        """(P,) component means spread evenly over [-1, 1], with scales of half their distance."""
        k, c = self.num_mixtures, self.channels
        centers = (torch.arange(k) + 0.5) * (2.0 / k) - 1.0
        log_scale = math.log(1.0 / k)
        parts = [torch.zeros(k), centers.repeat(c), torch.full((c * k,), log_scale)]
        return torch.cat([*parts, torch.zeros(self.num_parameters - k * (1 + 2 * c))])

    def _rows(self, parameters: Tensor) -> Tensor:
        """(..., P) -> (..., P / K, K)."""
        rows = parameters.shape[-1] // self.num_mixtures
        return parameters.reshape(*parameters.shape[:-1], rows, self.num_mixtures)

    def _split(self, rows: Tensor) -> _Mixture:
        c = self.channels
        coefficients = torch.tanh(rows[..., 1 + 2 * c :, :]) if c == 3 else None
        log_scales = rows[..., 1 + c : 1 + 2 * c, :].clamp(min=_LOWEST_LOG_SCALE)
        return _Mixture(rows[..., 0, :], rows[..., 1 : 1 + c, :], log_scales, coefficients)

    def _to_unit(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        return tokens.to(dtype) * (2.0 / (self.levels - 1)) - 1.0

    def _to_level(self, x: Tensor) -> Tensor:
        half_range = (self.levels - 1) / 2.0
        level = x.mul(half_range).add_(half_range).round_().clamp_(0, self.levels - 1)
        return level.nan_to_num_().long()  # NaN as an integer would be an invalid index

    def _to_tokens(self, values: Tensor, coefficients: Tensor | None) -> Tensor:
        """The levels nearest to values (..., C), shifted by the levels of earlier channels."""
        if coefficients is None:
            return self._to_level(values.squeeze(-1))
        green_on_red, blue_on_red, blue_on_green = coefficients.squeeze(-1).unbind(-1)
        red = self._to_level(values[..., 0])
        x_red = self._to_unit(red, values.dtype)
        green = self._to_level(values[..., 1] + green_on_red * x_red)
        x_green = self._to_unit(green, values.dtype)
        blue = self._to_level(values[..., 2] + blue_on_red * x_red + blue_on_green * x_green)
        return torch.stack([red, green, blue], -1)

    def _log_mass(self, tokens: Tensor, distance: Tensor, log_scales: Tensor) -> Tensor:
        """log of the logistic's mass on each token's bin; `distance` is from mean to bin center.

        With a and b the bin's upper and lower end in units of the scale,

            sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)).

        The logarithm of this product is accurate however small the mass, so tails need no
        approximation by the density. For the first and last level one sigmoid remains.
        """
        half = 1.0 / (self.levels - 1)
        inverse_scale = torch.exp(-log_scales)
        log_below_upper = F.logsigmoid((distance + half) * inverse_scale)
        log_above_lower = F.logsigmoid((half - distance) * inverse_scale)
        middle = log_below_upper + log_above_lower + _log1m_exp(math.log(2 * half) - log_scales)
        middle = torch.where(tokens == 0, log_below_upper, middle)
        return torch.where(tokens == self.levels - 1, log_above_lower, middle)


def _condition_means(mixture: _Mixture, x: Tensor) -> Tensor:
    """Means (..., C, K) given the values x (..., C) of the channels before."""
    if mixture.coefficients is None:
        return mixture.means
    red, green = x[..., 0, None], x[..., 1, None]
    means, on = mixture.means, mixture.coefficients
    shifts = [
        torch.zeros_like(means[..., 0, :]),
        on[..., 0, :] * red,
        on[..., 1, :] * red + on[..., 2, :] * green,
    ]
    return means + torch.stack(shifts, -2)


def _logistic(uniform: Tensor) -> Tensor:
    """Standard logistic random numbers, by the inverse of the distribution function."""
    return torch.logit(uniform, eps=torch.finfo(uniform.dtype).eps / 2)


def _log1m_exp(log_width: Tensor) -> Tensor:
    """log(1 - exp(-w)) for w = exp(log_width) > 0, accurate also for very small w."""
    width = log_width.exp()
    narrow = 1e-4
    # 1 - exp(-w) = w (1 - w / 2 + ...): below `narrow` the next term is under float32's rounding.
    return torch.where(
        width < narrow, log_width - width / 2, torch.log(-torch.expm1(-width.clamp(min=narrow)))
    )
