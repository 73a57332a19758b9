"""Vectors of positions: one row for each position, with the documented scale."""

from __future__ import annotations

import math

import pytest
import torch

from linattn_models.tokens.positions import STD, Positions, sinusoids


@pytest.mark.parametrize("embed_dim", [1, 6, 7])
def test_sinusoids_are_the_formula(embed_dim: int) -> None:
    table = sinusoids(5, embed_dim)
    assert table.shape == (5, embed_dim)
    for p in range(5):
        for j in range(embed_dim):
            angle = p / 10000 ** ((j - j % 2) / embed_dim)
            expected = math.cos(angle) if j % 2 else math.sin(angle)
            assert table[p, j].item() == pytest.approx(expected, abs=1e-6)


KINDS = [("learned", 9), ("sinusoidal", 9), ("sinusoidal", None), ("sinusoidal", 4), ("none", None)]


@pytest.mark.parametrize(("kind", "max_length"), KINDS)
def test_one_position_and_each_rows_own_are_rows_of_the_whole(
    kind: str, max_length: int | None
) -> None:
    positions = Positions(kind, max_length, 6)
    zeros = torch.zeros(2, 9, 6)
    whole = positions(zeros)[0]
    if kind == "sinusoidal":
        torch.testing.assert_close(whole, sinusoids(9, 6) * STD * math.sqrt(2))
    assert torch.equal(positions.at(zeros[:, 0], 5)[1], whole[5])
    each = torch.tensor([3, 8])
    assert torch.equal(positions.at(zeros[:, 0], each), whole[each])
    assert torch.equal(positions(zeros[:, :4], 2)[0], whole[2:6])
    from_each = positions(zeros[:, :3], torch.tensor([5, 1]))
    assert torch.equal(from_each, torch.stack([whole[5:8], whole[1:4]]))
    if kind != "none":  # which has no table
        assert torch.equal(positions.rows(9, zeros)[:9], whole)
    assert len(list(positions.parameters())) == (kind == "learned")


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_entries_have_the_documented_root_mean_square(kind: str) -> None:
    positions = Positions(kind, 500, 64)
    rms = positions(torch.zeros(1, 500, 64)).square().mean().sqrt().item()
    assert rms == pytest.approx(STD, rel=0.02)


def test_a_learned_table_ends() -> None:
    assert Positions("learned", 4, 2).limit == 4
    with pytest.raises(ValueError, match="max_length"):
        Positions("learned", None, 2)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="got 'learnt'; did you mean 'learned'"):
        Positions("learnt", 4, 2)
