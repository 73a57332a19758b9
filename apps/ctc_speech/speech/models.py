"""A recognizer from a recipe, and from the folder of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linattn_core.errors import expected
from linattn_lab.machine import default_device
from linattn_lab.runs import app_config
from linattn_models.ctc import (
    CTCBiLSTM,
    CTCBiLSTMConfig,
    CTCTransformer,
    CTCTransformerConfig,
)
from linattn_models.training import RunFolder, TrainingFlags, average_weights
from speech.corpora import BadInput
from speech.features import Normalization
from speech.presets import DATA_FIELDS, Recipe
from speech.running import Prior
from speech.units import Units

APP = "ctc_speech"

Recognizer = CTCBiLSTM | CTCTransformer


@dataclass(frozen=True)
class TrainedRun:
    """A trained recognizer, and what it was trained on.

    Attributes:
        config: the run's config.json.
    """

    model: Recognizer
    config: Mapping[str, Any]
    step: int

    @property
    def units(self) -> Units:
        """The labels of the classes."""
        return Units(self.config["units"], tuple(self.config["inventory"]))

    @property
    def alone(self) -> Normalization:
        """The normalization of a recording of which nothing else is known."""
        kind: Normalization = self.config["normalize"]
        return "utterance" if kind == "speaker" else kind

    @property
    def prior(self) -> Prior | None:
        """Where the running normalization of a recording begins; None with another one."""
        if self.alone != "running":
            return None
        return Prior.from_dict(self.config["prior"])

    @property
    def label(self) -> str:
        """For titles."""
        return f"{self.config['corpus']}, {self.config['attention']}, step {self.step:,}"


def build_model(recipe: Recipe, num_labels: int) -> Recognizer:
    """A recognizer with random weights."""
    if recipe.attention == "lstm":
        return CTCBiLSTM(
            CTCBiLSTMConfig(
                num_labels,
                num_layers=recipe.lstm_layers,
                hidden_dim=recipe.lstm_dim,
                dropout=recipe.dropout if recipe.lstm_layers > 1 else 0.0,
                subsampling=recipe.subsampling,
                bidirectional=not recipe.chunk,
            )
        )
    return CTCTransformer(
        CTCTransformerConfig(
            num_labels,
            recipe.transformer(),
            subsampling=recipe.subsampling,
            depthwise_kernel=recipe.depthwise_kernel,
            positions=recipe.positions,
        )
    )


def load_run(folder: Path, average: int = 1) -> TrainedRun:
    """The newest checkpoint of the run in `folder`, ready to recognize.

    Args:
        average: how many of the newest checkpoints the weights are the mean of.
    """
    run = RunFolder(folder)
    config = app_config(run, APP, ("units", "inventory", "normalize"))
    model, step = run.load_model(_build_from)
    if average > 1:
        model.load_state_dict(average_weights(_newest_checkpoints(run, average)))
    model.to(default_device()).eval()
    return TrainedRun(model, config, step)


def _newest_checkpoints(run: RunFolder, count: int) -> list[Path]:
    checkpoints = run.checkpoints()
    if len(checkpoints) < count:
        wanted = f"at most the {len(checkpoints)} checkpoints in {run.path}"
        raise ValueError(expected("--average", wanted, count))
    return checkpoints[-count:]


def rebuild_recipe(run: TrainedRun, bad_input: BadInput) -> Recipe:
    """What of a run's recipe decides its data."""
    values = {name: run.config[name] for name in DATA_FIELDS}
    return Recipe(training=TrainingFlags(1, 1), **values | {"bad_input": bad_input})


def _build_from(values: dict[str, Any]) -> Recognizer:
    return (CTCBiLSTM if "bilstm" in values else CTCTransformer).from_dict(values)
