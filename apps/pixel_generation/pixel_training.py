"""A run from a recipe to its numbers and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from pixel_baselines import independent_pixels
from pixel_datasets import Images
from pixel_evaluation import bits_per_dim
from pixel_pictures import affordable_samples, write_samples
from pixel_presets import Attention, Recipe
from pixel_runs import APP, build_model
from pixel_tokens import TokenData
from torch import Tensor

from linattn_models import AutoregressiveTransformer
from linattn_models.training import RunFolder, train


def train_model(
    images: Images,
    recipe: Recipe,
    *,
    attention: Attention,
    preset: str,
    seed: int,
    out: Path,
    resume: bool = False,
) -> tuple[AutoregressiveTransformer, dict[str, Any]]:
    """The trained model, and what summary.json in the run folder `out` then holds."""
    torch.manual_seed(seed)  # the weights at the start
    model = build_model(recipe, attention, images)
    watched = images.validation[: recipe.validation_images]
    summary = train(
        model,
        TokenData(images.train, recipe.layout),
        loss=mean_nats,
        evaluate=lambda model: {"bits_per_dim": bits_per_dim(model, watched, recipe.layout)},
        config=recipe.training(seed),
        out=out,
        resume=resume,
        describe={
            "app": APP,
            "preset": preset,
            "dataset": images.name,
            "attention": attention,
            "layout": recipe.layout,
        },
        model_config=model.to_dict(),
    )
    if PartialState().is_main_process:  # under torchrun the others have nothing left to do
        summary = finish(model, images, recipe, RunFolder(out))
    return model, summary


def mean_nats(model: AutoregressiveTransformer, tokens: Tensor) -> Tensor:
    """The loss: -log p per dimension, the mean over a batch."""
    return model.loss(tokens)


def finish(
    model: AutoregressiveTransformer, images: Images, recipe: Recipe, run: RunFolder
) -> dict[str, Any]:
    """Looks at the test images, for the first time, and leaves numbers and pictures in the folder.

    While training, "bits_per_dim" was that of the validation images; in the summary the name goes
    to the test images, and the last validation figure keeps its own.
    """
    summary = run.summary()
    seen = summary["metrics"]
    test = images.test[: recipe.test_images]
    summary["metrics"] = {
        "bits_per_dim": bits_per_dim(model, test, recipe.layout),
        # The second name is there when a run that had ended is resumed.
        "validation_bits_per_dim": seen.get("validation_bits_per_dim", seen["bits_per_dim"]),
        "independent_pixels_bits_per_dim": independent_pixels(images.train, test, images.levels),
        "test_images": len(test),
    }
    run.write_summary(summary)
    label = f"{images.name}, {summary['attention']} attention, step {summary['steps']:,}"
    count = affordable_samples(model, images)
    write_samples(run.path / "samples.png", model, images, count, label)
    run.plot_curves()
    return summary
