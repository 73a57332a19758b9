"""Mixture of logistics: exact at the edges, finite everywhere, samples follow the likelihood."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import MixtureOfLogistics
from tests.models.tiny import seeded

LEVELS = (2, 17, 256)


def parameters_of(head: MixtureOfLogistics, *shape: int) -> Tensor:
    """Parameters whose scales run from much narrower than a bin to wider than the range."""
    parameters = torch.randn(*shape, head.num_parameters, dtype=torch.float64)
    k, c = head.num_mixtures, head.channels
    parameters[..., (1 + c) * k : (1 + 2 * c) * k].mul_(2).sub_(3)
    return parameters


def all_tokens(head: MixtureOfLogistics) -> Tensor:
    """(levels, ) or (levels^3, 3)."""
    if head.channels == 1:
        return torch.arange(head.levels)
    return torch.tensor(list(itertools.product(range(head.levels), repeat=3)))


@pytest.mark.parametrize("levels", LEVELS)
def test_probabilities_of_all_levels_sum_to_one(levels: int) -> None:
    head = MixtureOfLogistics(4, 1, levels)
    parameters = parameters_of(head, 20, 1).expand(20, levels, -1)
    nats = head.negative_log_likelihood(parameters, all_tokens(head).expand(20, levels))
    torch.testing.assert_close(nats.neg().exp().sum(1), torch.ones(20, dtype=torch.float64))


@pytest.mark.parametrize("levels", [2, 17])
def test_probabilities_of_all_colors_sum_to_one(levels: int) -> None:
    head = MixtureOfLogistics(3, 3, levels)
    tokens = all_tokens(head)
    for _ in range(3):
        parameters = parameters_of(head, 1).expand(len(tokens), -1)
        nats = head.negative_log_likelihood(parameters, tokens)
        torch.testing.assert_close(nats.neg().exp().sum().item(), 1.0)


@pytest.mark.parametrize("log_scale", [-20.0, -7.0, 5.0, 12.0, 100.0])
def test_probabilities_sum_to_one_at_extreme_scales(log_scale: float) -> None:
    head = MixtureOfLogistics(1, 1, 256)
    parameters = torch.tensor([0.0, 0.4, log_scale], dtype=torch.float64).expand(256, -1)
    nats = head.negative_log_likelihood(parameters, all_tokens(head))
    torch.testing.assert_close(nats.neg().exp().sum().item(), 1.0)


def test_mass_is_the_difference_of_the_distribution_function() -> None:
    head = MixtureOfLogistics(1, 1, 17)
    mean, log_scale = 0.3, -1.5
    parameters = torch.tensor([0.0, mean, log_scale], dtype=torch.float64).expand(17, -1)
    edges = (torch.arange(18, dtype=torch.float64) - 0.5) * (2 / 16) - 1
    cdf = torch.sigmoid((edges - mean) / torch.tensor(log_scale).double().exp())
    cdf[0], cdf[-1] = 0.0, 1.0
    nats = head.negative_log_likelihood(parameters, torch.arange(17))
    torch.testing.assert_close(nats.neg().exp(), cdf.diff())


def test_green_moves_with_red_and_blue_with_both() -> None:
    head = MixtureOfLogistics(1, 3, 256)
    half = torch.atanh(torch.tensor(0.5, dtype=torch.float64)).item()
    # logit, three means, three narrow log-scales, coefficients 1/2 of g on r, b on r, b on g
    parameters = torch.tensor([0.0, 1.0, 0.0, 0.0, -7, -7, -7, half, half, -half]).double()
    token = head.sample(parameters, temperature=0.0)
    green = round((0.5 + 1) * 127.5)
    blue = round((0.5 - 0.5 * (green / 127.5 - 1) + 1) * 127.5)
    assert token.tolist() == [255, green, blue]
    best = head.negative_log_likelihood(parameters, token)
    for channel in (1, 2):
        other = token.clone()
        other[channel] -= 3
        assert head.negative_log_likelihood(parameters, other) > best + 1


# Not float16: the gradient of a distant narrow component, 1000 / exp(-7), overflows it.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
@given(scale=st.sampled_from([1.0, 30.0, 1000.0]), data=st.data())
def test_loss_and_gradients_are_finite_everywhere(
    dtype: torch.dtype, channels: int, scale: float, data: st.DataObject
) -> None:
    head = MixtureOfLogistics(3, channels, 256)
    torch.manual_seed(data.draw(st.integers(0, 9)))
    parameters = (torch.randn(32, head.num_parameters) * scale).to(dtype).requires_grad_()
    shape = (32,) if channels == 1 else (32, 3)
    edges = torch.tensor([0, 255, 128, 1])
    tokens = edges[torch.randint(4, shape)]
    nats = head.negative_log_likelihood(parameters, tokens)
    assert nats.dtype == torch.float32 and nats.isfinite().all()
    (gradient,) = torch.autograd.grad(nats.sum(), parameters)
    assert gradient.isfinite().all()


def test_gradients_are_those_of_finite_differences() -> None:
    for channels in (1, 3):
        head = MixtureOfLogistics(2, channels, 17)
        parameters = parameters_of(head, 3).requires_grad_()
        tokens = torch.tensor([0, 16, 5]) if channels == 1 else torch.tensor([[0, 16, 5]] * 3)
        assert torch.autograd.gradcheck(
            lambda p, head=head, tokens=tokens: head.negative_log_likelihood(p, tokens), parameters
        )


def test_float32_agrees_with_float64() -> None:
    head = MixtureOfLogistics(10, 1, 256)
    parameters, tokens = parameters_of(head, 500), torch.randint(256, (500,))
    exact = head.negative_log_likelihood(parameters, tokens)
    single = head.negative_log_likelihood(parameters.float(), tokens)
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-3)


def test_autocast_does_not_lower_the_precision() -> None:
    head = MixtureOfLogistics(10, 1, 256)
    parameters, tokens = parameters_of(head, 50).bfloat16(), torch.randint(256, (50,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = head.negative_log_likelihood(parameters, tokens)
    assert torch.equal(inside, head.negative_log_likelihood(parameters.float(), tokens))


@pytest.mark.parametrize("levels", [5, 17])
def test_samples_follow_the_likelihood(levels: int) -> None:
    head = MixtureOfLogistics(3, 1, levels)
    parameters = parameters_of(head)
    count = 40_000
    tokens = head.sample(parameters.expand(count, -1), generator=seeded())
    nats = head.negative_log_likelihood(parameters.expand(levels, -1), torch.arange(levels))
    frequency = torch.bincount(tokens, minlength=levels) / count
    assert (frequency - nats.neg().exp()).abs().max() < 4 * (0.25 / count) ** 0.5


def test_sampled_colors_follow_the_likelihood() -> None:
    head = MixtureOfLogistics(2, 3, 3)
    parameters = parameters_of(head)
    count = 40_000
    tokens = head.sample(parameters.expand(count, -1), generator=seeded())
    expected = head.negative_log_likelihood(parameters.expand(27, -1), all_tokens(head)).neg().exp()
    codes = tokens @ torch.tensor([9, 3, 1])
    frequency = torch.bincount(codes, minlength=27) / count
    assert (frequency - expected).abs().max() < 4 * (0.25 / count) ** 0.5


def test_lower_temperature_is_narrower_and_zero_draws_nothing() -> None:
    head = MixtureOfLogistics(1, 1, 256)
    parameters = torch.tensor([0.0, 0.2, -2.0]).expand(2000, -1)
    spread = [
        head.sample(parameters, temperature=t, generator=seeded()).double().std().item()
        for t in (1.0, 0.5, 0.25)
    ]
    assert spread[0] > 1.8 * spread[1] > 3.2 * spread[2]
    generator = seeded()
    before = generator.get_state()
    tokens = head.sample(parameters, temperature=0.0, generator=generator)
    assert (tokens == round(1.2 * 127.5)).all()
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("channels", [1, 3])
def test_extreme_parameters_give_tokens_in_range(channels: int) -> None:
    head = MixtureOfLogistics(2, channels, 256)
    for scale in (1e2, 1e4):
        tokens = head.sample(torch.randn(500, head.num_parameters) * scale, generator=seeded())
        assert tokens.dtype == torch.int64 and tokens.min() >= 0 and tokens.max() <= 255


@pytest.mark.parametrize("channels", [1, 3])
def test_starts_from_a_broad_distribution(channels: int) -> None:
    head = MixtureOfLogistics(10, channels, 256)
    shape = (256,) if channels == 1 else (256, 3)
    bias = head.initial_bias().expand(256, -1)
    tokens = torch.arange(256).view(-1, *[1] * (channels > 1)).expand(shape)
    nats = head.negative_log_likelihood(bias, tokens) / channels
    uniform = torch.tensor(256.0).log()
    assert (nats < uniform + 1.5).all()
    assert bias.shape[1] == head.num_parameters == (30 if channels == 1 else 100)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_mixtures": 0}, "num_mixtures: expected an integer of at least 1, got 0"),
        ({"channels": 2}, "channels: expected 1 or 3, got 2"),
        ({"levels": 1}, "levels: expected an integer of at least 2, got 1"),
    ],
)
def test_refuses_fields_that_cannot_be_right(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MixtureOfLogistics(**fields)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(2, dtype=torch.int64), "tokens: expected shape (2, 3), got (2,)"),
        (torch.tensor([[0, 1, 2], [3, 4, 256]]), "values in 0..255, got 0 to 256"),
    ],
)
def test_refuses_tokens_that_cannot_be_right(tokens: Tensor, said: str) -> None:
    head = MixtureOfLogistics(2, 3)
    with pytest.raises(ValueError, match=re.escape(said)):
        head.negative_log_likelihood(torch.zeros(2, head.num_parameters), tokens)
    with pytest.raises(ValueError, match="temperature: expected"):
        head.sample(torch.zeros(2, head.num_parameters), temperature=-1.0)
