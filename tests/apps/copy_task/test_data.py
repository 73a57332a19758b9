"""The sequences: the second half repeats the first, and nothing but seed and index decides them."""

from __future__ import annotations

import pytest
import torch

from copying.data import SEPARATOR, SYMBOLS, Duplications, Stream, in_second_half

INDICES = torch.arange(400)
STREAMS: tuple[Stream, ...] = ("training", "held-out")


@pytest.mark.parametrize("max_length", [4, 5, 16, 128])
def test_a_separator_symbols_a_separator_and_the_symbols_again(max_length: int) -> None:
    batch = Duplications(0, "training", 400, max_length).batch(INDICES)
    assert batch["tokens"].shape == (400, max_length)
    for row, k in zip(batch["tokens"].tolist(), batch["copied"].tolist(), strict=True):
        first, second, padding = row[1 : k + 1], row[k + 2 : 2 * k + 2], row[2 * k + 2 :]
        assert first == second
        assert all(1 <= symbol <= SYMBOLS for symbol in first)
        assert row[0] == row[k + 1] == SEPARATOR
        assert not any(padding)


def test_every_length_and_every_symbol_comes_as_often_as_any_other() -> None:
    data = Duplications(0, "training", 6_400, 66)
    batch = data.batch(torch.arange(6_400))
    lengths = torch.bincount(batch["copied"], minlength=33)[1:].double()  # 200 expected of each
    assert lengths.shape == (data.most_symbols,) == (32,)
    # Six standard deviations of a count of one kind among many.
    assert (lengths - 200).abs().max() < 6 * 200**0.5
    symbols = batch["tokens"][in_second_half(batch["copied"], 66)]
    counts = torch.bincount(symbols, minlength=11)[1:].double()
    expected = len(symbols) / SYMBOLS
    assert (counts - expected).abs().max() < 6 * expected**0.5


def test_a_sequence_is_the_same_in_every_batch() -> None:
    data = Duplications(3, "held-out", 400, 32)
    whole = data.batch(INDICES)
    picked = torch.tensor([7, 399, 7, 0])
    for name, values in Duplications(3, "held-out", 9_999, 32).batch(picked).items():
        assert torch.equal(values, whole[name][picked])


def test_seeds_streams_and_indices_draw_apart() -> None:
    streams = [Duplications(seed, kind, 400, 128) for seed in (0, 1) for kind in STREAMS]
    drawn = [stream.batch(INDICES) for stream in streams]
    # Short ones coincide by chance.
    long = torch.cat([batch["tokens"][batch["copied"] >= 20] for batch in drawn])
    assert len(long) > 4 * 200
    assert len(long.unique(dim=0)) == len(long)


def test_in_second_half() -> None:
    asked = in_second_half(torch.tensor([1, 3]), 9)
    assert asked.long().tolist() == [[0, 0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 0]]
