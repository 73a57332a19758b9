"""A model from a recipe, and the same model again from the folder of its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pixel_datasets import DatasetName, Images
from pixel_presets import Attention, Recipe
from pixel_tokens import Layout, to_tokens

from linattn_models import AutoregressiveTransformer
from linattn_models.training import RunFolder

APP = "pixel_generation"


@dataclass(frozen=True)
class TrainedRun:
    """A trained model and what it was trained on."""

    model: AutoregressiveTransformer
    dataset: DatasetName
    attention: Attention
    layout: Layout
    step: int


def build_model(recipe: Recipe, attention: Attention, images: Images) -> AutoregressiveTransformer:
    """A model with random weights for the tokens that `recipe` makes of `images`."""
    return AutoregressiveTransformer(
        recipe.transformer(attention),
        recipe.output_head(images),
        max_length=to_tokens(images.test[:1], recipe.layout).shape[1],
    )


def load_run(folder: Path) -> TrainedRun:
    """The newest checkpoint of the run in `folder`, ready to generate.

    Raises:
        ValueError: the folder is no run of this application, or its checkpoint is damaged.
    """
    run = RunFolder(folder)
    config = run.config()
    if config.get("app") != APP:
        raise ValueError(f"{folder}: expected a run of {APP}, found one of {config.get('app')!r}")
    absent = {"dataset", "attention", "layout", "model"} - set(config)
    if absent:
        raise ValueError(
            f"{run.config_file}: expected {', '.join(sorted(absent))} in it, found none"
        )
    model = _model_of(config["model"], run.config_file)
    step = run.load_weights(model)
    model.to(default_device()).eval()
    return TrainedRun(model, config["dataset"], config["attention"], config["layout"], step)


def _model_of(values: dict[str, Any], path: Path) -> AutoregressiveTransformer:
    try:
        return AutoregressiveTransformer.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path} describes no model: {error}") from None


def default_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
