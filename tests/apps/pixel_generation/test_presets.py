"""Every preset describes a model that can be built, for every dataset; `paper` is the paper's."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from pixel_datasets import Images
from pixel_presets import PRESETS, Attention, PresetName, demo, laptop, paper, recipe_for, smoke
from pixel_runs import build_model
from pixel_tokens import to_tokens

from linattn_models import MixtureOfLogistics


def images_like(name: str, count: int = 20) -> Images:
    side = {"digits": (8, 8), "mnist": (28, 28), "fashion-mnist": (28, 28)}
    blank = np.zeros((count, *side.get(name, (32, 32, 3))), np.uint8)
    return Images(name, blank, blank[:2], blank[:2], 17 if name == "digits" else 256)


@pytest.mark.parametrize("attention", get_args(Attention))
@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist", "cifar10"])
@pytest.mark.parametrize("preset", ["smoke", "laptop"])
def test_models_fit_their_tokens(preset: PresetName, name: str, attention: Attention) -> None:
    images = images_like(name)
    recipe = recipe_for(preset, images)
    model = build_model(recipe, attention, images)
    assert str(model.config.attention) == attention
    tokens = to_tokens(images.test[:1], recipe.layout)
    assert model.max_length == tokens.shape[1] == images.dimensions
    assert model(tokens).shape == (1, images.dimensions, model.head.num_parameters)
    assert recipe.training(seed=3).seed == 3


def test_paper_mnist() -> None:
    """Section 4.2 of the paper."""
    images = images_like("mnist", count=60_000)
    recipe = paper(images)
    model = build_model(recipe, "linear", images)
    assert (model.config.num_layers, model.config.num_heads, model.config.head_dim) == (8, 8, 32)
    assert model.config.ffn_dim == 1_024
    assert model.head == MixtureOfLogistics(10, 1, 256)
    assert model.max_length == 784
    training = recipe.training(seed=0)
    assert (training.optimizer, training.learning_rate) == ("radam", 1e-4)
    assert training.batch_size == 10
    assert training.steps == 250 * 6_000


def test_paper_cifar10() -> None:
    images = images_like("cifar10")
    recipe = paper(images)
    assert (recipe.num_layers, recipe.batch_size, recipe.layout) == (16, 4, "sub-pixels")
    assert to_tokens(images.test[:1], recipe.layout).shape[1] == 3_072


def test_colors_as_one_token_need_a_head_for_three() -> None:
    images = images_like("cifar10")
    recipe = smoke(images)

    together = replace(recipe, layout="pixels")
    assert together.output_head(images) == MixtureOfLogistics(10, 3, 256)
    with pytest.raises(ValueError, match="expected the head 'logistics' with the layout 'pixels'"):
        replace(together, head="categorical").output_head(images)


def test_few_steps_still_warm_up() -> None:
    images = images_like("digits")
    assert laptop(images).training(0).warmup_steps == 100

    assert replace(laptop(images), steps=50).training(0).warmup_steps == 5
    assert replace(laptop(images), steps=1).training(0).warmup_steps == 0


def test_the_demo_differs_from_the_laptop_in_budget_only() -> None:
    images = images_like("digits")
    assert (
        demo(images).transformer("linear").embed_dim
        == laptop(images).transformer("linear").embed_dim
    )
    assert demo(images).steps < laptop(images).steps
    assert set(PRESETS) == {"smoke", "laptop", "paper"}
