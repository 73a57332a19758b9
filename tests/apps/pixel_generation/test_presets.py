"""Every preset describes a model that can be built, for every dataset; `paper` is the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from linattn_models import MixtureOfLogistics
from pixels.datasets import DatasetName, Images, load
from pixels.models import TrainedRun, build_model
from pixels.presets import PRESETS, TRAINING_IMAGES, Attention, paper, smoke
from pixels.tokens import Layout, to_tokens

SHAPES = {"digits": (1, 8, 8), "cifar10": (1, 32, 32, 3), "folder": (1, 12, 12, 3)}


def blank(name: DatasetName) -> Images:
    """One black image in each part, of the size of a dataset's."""
    black = np.zeros(SHAPES.get(name, (1, 28, 28)), np.uint8)
    return Images(name, black, black, black, 17 if name == "digits" else 256)


@pytest.mark.parametrize(
    ("preset", "name", "attention"),
    [
        *(("smoke", "digits", attention) for attention in get_args(Attention)),
        *(("laptop", name, "linear") for name in get_args(DatasetName)),
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


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("name", get_args(DatasetName))
def test_a_model_knows_the_images_that_it_draws(name: DatasetName, layout: Layout) -> None:
    recipe = replace(smoke(name), layout=layout, head="logistics")
    images = blank(name)
    run = TrainedRun(build_model(recipe, images), name, "linear", layout, 0)
    drawn = run.blank_images()
    assert drawn.test.shape == images.test.shape and not drawn.test.any()
    assert (drawn.name, drawn.levels) == (name, images.levels)


def test_a_model_of_no_image_is_refused() -> None:
    black = np.zeros((1, 2, 5), np.uint8)
    images = Images("digits", black, black, black, 17)
    model = build_model(smoke("digits"), images)
    with pytest.raises(ValueError, match=r"square image.* got 10"):
        TrainedRun(model, "digits", "linear", "sub-pixels", 0).blank_images()


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
    assert paper("folder").training == training


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
