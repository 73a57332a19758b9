"""Vectors of positions: one row a position, on their own scale."""

from __future__ import annotations

import math

import pytest
import torch

from linattn_models.positions import Positions, sinusoids


@pytest.mark.parametrize("embed_dim", [1, 6, 7])
def test_sinusoids_are_the_formula(embed_dim: int) -> None:
    table = sinusoids(5, embed_dim)
    assert table.shape == (5, embed_dim)
    for p in range(5):
        for j in range(embed_dim):
            angle = p / 10000 ** ((j - j % 2) / embed_dim)
            expected = math.cos(angle) if j % 2 else math.sin(angle)
            assert table[p, j].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_one_position_and_each_rows_own_are_rows_of_the_whole(kind: str) -> None:
    positions = Positions(kind, 9, 6, std=0.5)
    whole = positions(9)
    assert torch.equal(positions.at(4), whole[4])
    assert torch.equal(positions.at(torch.tensor([3, 8])), whole[[3, 8]])
    assert len(list(positions.parameters())) == (kind == "learned")


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_entries_have_the_asked_root_mean_square(kind: str) -> None:
    rms = Positions(kind, 500, 64, std=0.5)(500).square().mean().sqrt().item()
    assert rms == pytest.approx(0.5, rel=0.02)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="got 'learnt'; did you mean 'learned'"):
        Positions("learnt", 4, 2, std=1.0)
