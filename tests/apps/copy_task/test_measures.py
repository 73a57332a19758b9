"""Second halves count, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from copying.data import SYMBOLS, VOCABULARY, Duplications, in_second_half
from copying.measures import SEQUENCES_AT_ONCE, copy_loss, copy_measures
from linattn_models import Categorical

DATA = Duplications(0, "held-out", SEQUENCES_AT_ONCE + 3, 20)


class Oracle(nn.Module):
    """Returns logits made from the very tokens that it is to predict."""

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head = Categorical(VOCABULARY)
        self.device = torch.device("cpu")
        self.logits = logits

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(tokens)

    def own_positions(self, length: int) -> slice:
        return slice(0, length)


def certain(tokens: Tensor) -> Tensor:
    """Logits that are sure of the right token."""
    return 100.0 * nn.functional.one_hot(tokens, VOCABULARY).float()


def test_perfect_and_uniform_predictions() -> None:
    perfect = copy_measures(Oracle(certain), DATA)
    assert perfect == {"loss": 0.0, "accuracy": 1.0, "sequence_accuracy": 1.0}

    guesses = torch.zeros(VOCABULARY)
    guesses[0] = -math.inf  # no separator, all symbols equally likely
    uniform = copy_measures(Oracle(lambda tokens: guesses.expand(*tokens.shape, -1)), DATA)
    assert uniform["loss"] == pytest.approx(math.log(SYMBOLS))
    assert uniform["accuracy"] == pytest.approx(1 / SYMBOLS, abs=0.05)


def test_one_fault_spoils_one_symbol_and_one_copy() -> None:
    batch = DATA.batch(torch.arange(len(DATA)))
    symbols = int(batch["copied"].sum())
    longest = int(batch["copied"].argmax())
    faulty, last = batch["tokens"][longest], 2 * int(batch["copied"][longest]) + 1

    def logits(tokens: Tensor) -> Tensor:
        logits_of_batch = certain(tokens)
        there = (tokens == faulty).all(1)
        logits_of_batch[there, last] = logits_of_batch[there, last].roll(1, -1)
        return logits_of_batch

    assert (batch["tokens"] == faulty).all(1).sum() == 1
    measured = copy_measures(Oracle(logits), DATA)
    assert measured["accuracy"] == pytest.approx(1 - 1 / symbols)
    assert measured["sequence_accuracy"] == pytest.approx(1 - 1 / len(DATA))
    assert measured["loss"] == pytest.approx(100 / symbols)


def test_predictions_of_first_halves_and_padding_do_not_count() -> None:
    batch = DATA.batch(torch.arange(8))
    asked = in_second_half(batch["copied"], DATA.max_length)
    base = torch.randn(8, DATA.max_length, VOCABULARY)
    elsewhere = torch.where(asked[..., None], base, torch.randn_like(base))
    within = torch.where(asked[..., None], torch.randn_like(base), base)
    losses = [copy_loss(Oracle(lambda _, o=o: o), batch) for o in (base, elsewhere, within)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
