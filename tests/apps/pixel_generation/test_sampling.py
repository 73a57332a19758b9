"""Drawing and measuring, on a model small enough to sum over all its images."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from linattn_models import AutoregressiveTransformer, TransformerConfig
from pixels.datasets import load
from pixels.evaluation import bits_per_dim, independent_pixels
from pixels.pictures import write_completions, write_samples
from pixels.presets import Attention
from pixels.sampling import Draw, complete_images, sample_images


def tiny(
    attention: str = "linear", levels: int = 2, positions: int = 4
) -> AutoregressiveTransformer:
    config = TransformerConfig(num_layers=1, num_heads=1, head_dim=4, ffn_dim=8, dropout=0.5)
    return AutoregressiveTransformer(config.with_attention(attention), levels, positions)


@pytest.mark.parametrize("attention", get_args(Attention))
def test_bits_are_those_of_a_distribution_over_all_images(attention: str) -> None:
    """The probabilities that the bits stand for sum to 1 over the 16 images of 2x2 bits."""
    model = tiny(attention).train()
    every = np.array(list(itertools.product((0, 1), repeat=4)), np.uint8).reshape(-1, 2, 2)
    bits = [bits_per_dim(model, image[None], "sub-pixels") * 4 for image in every]
    assert sum(2.0**-cost for cost in bits) == pytest.approx(1, abs=1e-5)
    together = bits_per_dim(model, every, "sub-pixels")
    assert together == pytest.approx(sum(bits) / 64, abs=1e-5)
    assert model.training  # as it was


def test_batches_of_unequal_size_weigh_by_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(levels=5)
    images = np.random.default_rng(0).integers(0, 5, (7, 2, 2), dtype=np.uint8)
    whole = bits_per_dim(model, images, "sub-pixels")
    monkeypatch.setattr("pixels.evaluation.POSITIONS_AT_ONCE", 12)  # 3 + 3 + 1 images
    assert bits_per_dim(model, images, "sub-pixels") == pytest.approx(whole, abs=1e-5)


def test_samples_have_the_frequencies_that_the_bits_promise() -> None:
    model = tiny().train()
    drawn = sample_images(model, Draw().seeds(4_000), 2, 2)
    every = np.array(list(itertools.product((0, 1), repeat=4)), np.uint8).reshape(-1, 2, 2)
    for image in every:
        promised = 2.0 ** -(4 * bits_per_dim(model, image[None], "sub-pixels"))
        found = (drawn == image).all(axis=(1, 2)).mean()
        assert found == pytest.approx(promised, abs=5 * math.sqrt(promised / 4_000))


@pytest.mark.parametrize("attention", get_args(Attention))
def test_images_are_the_same_however_many_are_drawn_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    model, pictures = tiny(attention, levels=17, positions=64), list[bytes]()
    for at_once in (3, 24):
        monkeypatch.setattr("pixels.pictures.AT_ONCE", at_once)
        made = write_samples(tmp_path / "samples.png", model, load("digits"), 24, "x")
        assert len(np.unique(made, axis=0)) == 24
        write_completions(
            tmp_path / "completions.png", model, load("digits"), "sub-pixels", 7, 2, "x"
        )
        pictures += [(tmp_path / f"{x}.png").read_bytes() for x in ("samples", "completions")]
    assert pictures[:2] == pictures[2:]


def test_seeds_differ_and_the_first_ones_stay() -> None:
    seeds = Draw(seed=3).seeds(64)
    assert len(seeds.unique()) == 64
    assert torch.equal(Draw(seed=3).seeds(4), seeds[:4])
    assert not torch.isin(Draw(seed=4).seeds(64), seeds).any()


@pytest.mark.parametrize("attention", get_args(Attention))
def test_completions_keep_what_was_shown_and_differ_below(attention: str) -> None:
    model = tiny(attention, levels=16, positions=16)
    images = np.random.default_rng(0).integers(0, 16, (3, 4, 4), dtype=np.uint8)
    completed = complete_images(model, images, Draw().seeds(3, 5), "sub-pixels", rows_shown=2)
    assert completed.shape == (3, 5, 4, 4)
    for image, tries in zip(images, completed, strict=True):
        assert (tries[:, :2] == image[:2]).all()
        assert len(np.unique(tries[:, 2:].reshape(5, -1), axis=0)) > 1


def test_an_interruption_keeps_the_images_that_were_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixels.pictures.AT_ONCE", 4)
    model, draw = tiny(levels=16, positions=64), AutoregressiveTransformer.generate
    parts = iter((True, False))

    def generate(*args: Any, **options: Any) -> Any:
        if next(parts):
            return draw(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoregressiveTransformer, "generate", generate)
    with pytest.raises(KeyboardInterrupt):
        write_samples(tmp_path / "samples.png", model, load("digits"), 16, "x")
    height, width = imread(tmp_path / "samples.png").shape[:2]
    assert 2 * 56 < height < 3 * 56 and width > 2 * 56  # four of sixteen


def test_bits_of_independent_pixels_are_those_counted_by_hand() -> None:
    """Two positions, two levels, three images: counts (3, 0) and (1, 2), each plus a half."""
    train = np.array([[[0, 0]], [[0, 1]], [[0, 1]]], np.uint8)
    asked = np.array([[[0, 1]]], np.uint8)
    expected = -(math.log2(3.5 / 4) + math.log2(2.5 / 4)) / 2
    assert independent_pixels(train, asked, levels=2) == pytest.approx(expected)
