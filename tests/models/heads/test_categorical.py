"""The categorical head: its likelihood sums to one and its samples follow it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from linattn_models import Categorical
from tests.models.tiny import seeded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_probabilities_sum_to_one(dtype: torch.dtype) -> None:
    head = Categorical(11)
    parameters = (torch.randn(5, 1, 11) * 4).to(dtype).expand(5, 11, 11)
    tokens = torch.arange(11).expand(5, 11)
    nats = head.negative_log_likelihood(parameters, tokens)
    assert nats.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(nats.neg().exp().sum(1), torch.ones(5, dtype=nats.dtype))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_samples_follow_the_likelihood(temperature: float) -> None:
    head = Categorical(6)
    logits = torch.randn(6, dtype=torch.float64)
    count = 40_000
    tokens = head.sample(logits.expand(count, 6), temperature=temperature, generator=seeded())
    expected = torch.softmax(logits / temperature, 0)
    frequency = torch.bincount(tokens, minlength=6) / count
    assert (frequency - expected).abs().max() < 4 * (0.25 / count) ** 0.5


def test_temperature_zero_is_the_likeliest_and_draws_nothing() -> None:
    head = Categorical(6)
    logits = torch.randn(3, 4, 6)
    generator = seeded()
    before = generator.get_state()
    tokens = head.sample(logits, temperature=0.0, generator=generator)
    assert torch.equal(tokens, logits.argmax(-1))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    ("parameters", "tokens", "error", "said"),
    [
        (
            torch.zeros(2, 5),
            torch.zeros(2, dtype=torch.int64),
            ValueError,
            "parameters: expected shape (..., 6), got (2, 5)",
        ),
        (
            torch.zeros(2, 6),
            torch.zeros(3, dtype=torch.int64),
            ValueError,
            "tokens: expected shape (2,), got (3,)",
        ),
        (torch.zeros(2, 6), torch.zeros(2), TypeError, "convert them by .long()"),
        (
            torch.zeros(2, 6),
            torch.tensor([0, 6]),
            ValueError,
            "tokens: expected values in 0..5, got 0 to 6",
        ),
        (torch.zeros(2, 6), torch.tensor([-1, 5]), ValueError, "in 0..5, got -1 to 5"),
    ],
)
def test_refuses_what_cannot_be_right(
    parameters: Any, tokens: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=re.escape(said)):
        Categorical(6).negative_log_likelihood(parameters, tokens)


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_refuses_temperatures_out_of_range(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature: expected a number of at least 0"):
        Categorical(6).sample(torch.zeros(6), temperature=temperature)


@pytest.mark.parametrize("vocabulary", [1, 0, 2.5])
def test_refuses_vocabularies_without_a_choice(vocabulary: Any) -> None:
    with pytest.raises(ValueError, match="vocabulary: expected an integer of at least 2"):
        Categorical(vocabulary)
