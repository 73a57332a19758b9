"""A model from a recipe, the same model again from the folder of its run, and a trained one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from linattn_core.errors import expected, quote
from linattn_lab.machine import default_device
from linattn_lab.runs import app_config
from linattn_models import AutoregressiveTransformer, load
from linattn_models.basics.validation import from_fields
from linattn_models.training import RunFolder
from linattn_models.weights.model_files import is_saved_model
from pixels.datasets import DatasetName, FolderSettings, Images
from pixels.presets import Attention, Recipe
from pixels.tokens import Layout, to_tokens

APP = "pixel_generation"
PRETRAINED = Path(__file__).parent.parent / "pretrained"
KNOWN: dict[str, Any] = {"dataset": DatasetName, "attention": Attention, "layout": Layout}


@dataclass(frozen=True)
class TrainedRun:
    """A trained model and what it was trained on."""

    model: AutoregressiveTransformer
    dataset: DatasetName
    attention: Attention
    layout: Layout
    step: int
    settings: FolderSettings | None = None

    def blank_images(self) -> Images:
        """One black image in each part: of the size and the levels that the model draws."""
        numbers = (self.model.max_length or 0) * self.model.head.channels
        channels = 1 if math.isqrt(numbers) ** 2 == numbers else 3  # 3 n^2 is never a square
        side = math.isqrt(numbers // channels)
        if not side or channels * side * side != numbers:
            wanted = "the numbers of a square image, gray or in color"
            raise ValueError(expected("an image of the model", wanted, f"{numbers:,}"))
        black = np.zeros((1, side, side, 3)[: 3 + (channels == 3)], np.uint8)
        levels = self.model.head.levels
        return Images(self.dataset, black, black, black, levels, self.settings)


def build_model(recipe: Recipe, images: Images) -> AutoregressiveTransformer:
    """A model with random weights for the tokens that `recipe` makes of `images`."""
    return AutoregressiveTransformer(
        recipe.transformer(),
        recipe.output_head(images),
        max_length=to_tokens(images.test[:1], recipe.layout).shape[1],
    )


def load_run(folder: Path) -> TrainedRun:
    """The newest checkpoint of the run in `folder`, or the model saved there, ready to generate."""
    run, saved = RunFolder(folder), is_saved_model(folder)
    config = app_config(run, APP, [*KNOWN, "steps"] if saved else KNOWN)
    for name, names in KNOWN.items():
        if config[name] not in get_args(names):
            what, wanted = f"{name} in {run.config_file}", " or ".join(get_args(names))
            raise ValueError(expected(what, wanted, quote(config[name])))
    settings = None
    if config["dataset"] == "folder":
        what = f"folder in {run.config_file}"
        settings = from_fields(FolderSettings, what, config.get("folder"))
    if saved:
        model, step = cast(AutoregressiveTransformer, load(folder)), config["steps"]
    else:
        model, step = run.load_model(AutoregressiveTransformer.from_dict)
    model.to(default_device()).eval()
    names = config["dataset"], config["attention"], config["layout"]
    return TrainedRun(model, *names, step, settings)
