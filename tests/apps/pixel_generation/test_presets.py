"""Every preset describes a model that can be built, for every dataset; `paper` is the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from linattn_models import MixtureOfLogistics
from pixels.datasets import DatasetName, blank, load
from pixels.models import build_model
from pixels.presets import PRESETS, TRAINING_IMAGES, Attention, laptop, paper, smoke
from pixels.tokens import to_tokens


@pytest.mark.parametrize(
    ("preset", "name", "attention"),
    [
        *(("smoke", "digits", attention) for attention in get_args(Attention)),
        *(("laptop", name, "linear") for name in ("digits", "mnist", "fashion-mnist", "cifar10")),
    ],
)
def test_models_fit_their_tokens(preset: str, name: DatasetName, attention: Attention) -> None:
    images = blank(name)
    recipe = replace(PRESETS[preset](name), attention=attention)
    assert (recipe.preset, recipe.dataset) == (preset, name)
    model = build_model(recipe, images)
    assert str(model.config.attention) == attention
    tokens = to_tokens(images.test[:1], recipe.layout)
    assert model.max_length == tokens.shape[1] == images.dimensions
    assert model(tokens).shape == (1, images.dimensions, model.head.num_parameters)
    assert recipe.training.config().seed == 0


def test_the_papers_model_for_mnist() -> None:
    """Section 4.2 of the paper."""
    recipe = paper("mnist")
    model = build_model(recipe, blank("mnist"))
    assert (model.config.num_layers, model.config.num_heads, model.config.head_dim) == (8, 8, 32)
    assert model.config.ffn_dim == 1_024
    assert model.head == MixtureOfLogistics(10, 1, 256)
    assert model.max_length == 784
    training = recipe.training
    assert (training.optimizer, training.learning_rate) == ("radam", 1e-4)
    assert training.batch_size == 10
    assert training.steps == 250 * 5_500


def test_the_papers_model_for_cifar10() -> None:
    recipe = paper("cifar10")
    assert (recipe.num_layers, recipe.training.batch_size, recipe.layout) == (16, 4, "sub-pixels")
    assert to_tokens(blank("cifar10").test[:1], recipe.layout).shape[1] == 3_072


def test_an_epoch_is_that_of_the_published_files(shared_data: Callable[[str], Path]) -> None:
    assert len(load("digits").train) == TRAINING_IMAGES["digits"]
    assert len(load("mnist", shared_data("mnist")).train) == TRAINING_IMAGES["mnist"]


def test_colors_as_one_token_need_a_head_for_three() -> None:
    images = blank("cifar10")

    together = replace(smoke("cifar10"), layout="pixels")
    assert together.output_head(images) == MixtureOfLogistics(10, 3, 256)
    with pytest.raises(ValueError, match="head"):
        replace(together, head="categorical").output_head(images)


def test_few_steps_still_warm_up() -> None:
    training = laptop("digits").training
    assert training.config().warmup == 100

    assert replace(training, steps=50).config().warmup == 5
    assert replace(training, steps=1).config().warmup == 0
