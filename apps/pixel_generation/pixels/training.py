"""Trains a model from a recipe, and writes its numbers and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_lab.figures import add_figures, write_figures
from linattn_lab.plots import plot_run
from linattn_lab.runs import run_summary
from linattn_models import AutoregressiveTransformer
from linattn_models.training import RunFolder, is_main_process, train
from pixels.datasets import Images
from pixels.evaluation import bits_per_dim, independent_pixels
from pixels.models import APP, build_model
from pixels.pictures import affordable_samples, write_samples
from pixels.presets import Recipe
from pixels.tokens import TokenData

TESTED = ("bits_per_dim", "validation_bits_per_dim", "independent_pixels_bits_per_dim")
DESCRIBED = ("preset", "dataset", "attention", "layout", "validation_images")


def train_model(
    images: Images, recipe: Recipe, out: Path, *, resume: bool = False
) -> tuple[AutoregressiveTransformer, dict[str, Any]]:
    """The trained model, and what summary.json in the run folder `out` then holds."""
    torch.manual_seed(recipe.training.seed)  # the initial weights
    model = build_model(recipe, images)
    validation = images.validation[: recipe.validation_images]
    summary = train(
        model,
        TokenData(images.train, recipe.layout),
        loss=mean_nats,
        evaluate=lambda model: {"bits_per_dim": bits_per_dim(model, validation, recipe.layout)},
        config=recipe.training.config(),
        out=out,
        resume=resume,
        describe={"app": APP, **describe_run(images, recipe)},
        model_config=model.to_dict(),
    )
    tested = bits_per_dim(model, images.test[: recipe.test_images], recipe.layout)
    if is_main_process():
        summary = finish(model, images, recipe, RunFolder(out), tested)
    return model, summary


def describe_run(images: Images, recipe: Recipe) -> dict[str, object]:
    """What config.json has beside model and training; a resumed run must have the same."""
    described = {name: getattr(recipe, name) for name in DESCRIBED}
    if images.settings is not None:
        described["folder"] = asdict(images.settings)
    return {**described, "data_digest": images.digest()}


def mean_nats(model: AutoregressiveTransformer, tokens: Tensor) -> Tensor:
    """The loss: -log p per dimension, the mean over a batch."""
    return model.loss(tokens)


def finish(
    model: AutoregressiveTransformer, images: Images, recipe: Recipe, run: RunFolder, tested: float
) -> dict[str, Any]:
    """Writes numbers and pictures; `tested` are the bits per dimension of the test images.

    While training, "bits_per_dim" was that of the validation images; in the summary it is that of
    the test images, and the last one of the validation images is named "validation_bits_per_dim".
    """
    summary = run.summary()
    metrics = summary["metrics"]
    test = images.test[: recipe.test_images]
    summary["metrics"] = {
        "bits_per_dim": tested if math.isfinite(tested) else None,  # JSON has no NaN
        # A run that had ended and is resumed has this value under its own name already.
        "validation_bits_per_dim": metrics.get("validation_bits_per_dim", metrics["bits_per_dim"]),
        "independent_pixels_bits_per_dim": independent_pixels(images.train, test, images.levels),
        "test_images": len(test),
    }
    run.write_summary(summary)
    write_figures(run.path, {"bits": tested, "updates": summary["steps"]})
    if math.isfinite(tested):  # else there may be nothing to draw samples from
        label = f"{images.name}, {summary['attention']} attention, step {summary['steps']:,}"
        count = affordable_samples(model, images)
        write_samples(run.path / "samples.png", model, images, count, label)
        add_figures(run.path, picture_figures(summary, "samples"))
    plot_run(run)
    return summary


def picture_figures(summary: Mapping[str, Any], picture: str) -> dict[str, float]:
    """The updates after which a picture was drawn, and how good the model then was.

    Args:
        summary: of the run that ended.
        picture: "samples" or "completions".
    """
    metrics = summary["metrics"]
    gain = metrics["bits_per_dim"] / metrics["independent_pixels_bits_per_dim"]
    return {"updates-drawn": summary["steps"], f"{picture}-over-independent": gain}


def tested_summary(run: RunFolder) -> dict[str, Any]:
    """The summary of a run of this application that was trained and tested."""
    summary = run_summary(run, APP)
    values = {**summary["metrics"], "attention": summary.get("attention")}
    absent = [name for name in ("attention", *TESTED) if values.get(name) is None]
    if absent:
        advice = "resume its training"
        raise ValueError(expected(str(run.summary_file), ", ".join(absent), "none in it", advice))
    return summary
