"""A run on disk: where its files are, and how they are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import nn

from linattn_models.files import replace_file
from linattn_models.format_1 import weights_from_format_1
from linattn_models.training.checkpoint import MODEL_FILE, load_weights, read_checkpoint
from linattn_models.training.curves import plot_curves
from linattn_models.training.identity import fingerprint

_CHECKPOINT_NAME = re.compile(r"step-(\d+)")


class RunFolder:
    """The folder of one training run.

        config.json   metrics.jsonl   summary.json   checkpoints/step-N/   tensorboard/   curve.png

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints_folder = self.path / "checkpoints"
        self.tensorboard_folder = self.path / "tensorboard"

    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        traces = (self.config_file, self.metrics_file, self.summary_file, self.checkpoints_folder)
        return any(trace.exists() for trace in traces)

    def config(self) -> dict[str, Any]:
        """`config.json`: what is trained ("app", ...), its "model" and "training" configuration.

        Raises:
            ValueError: if it is missing or not a JSON object; so do `summary` and `metrics`.
        """
        return _read_object(self.config_file)

    def summary(self) -> dict[str, Any]:
        """`summary.json`: what came out of the run that ended here."""
        return _read_object(self.summary_file)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, in order; a last line still being written is left out."""
        if not self.metrics_file.exists():
            raise ValueError(f"{self.metrics_file} is missing: no run has logged anything there")
        return [
            _parse_object(line, f"{self.metrics_file}, line {number},")
            for number, line in enumerate(self._complete_lines(), start=1)
        ]

    def checkpoints(self) -> list[Path]:
        """The checkpoint folders, oldest first; temporary ones do not count."""
        if not self.checkpoints_folder.is_dir():
            return []
        found = [p for p in self.checkpoints_folder.iterdir() if _CHECKPOINT_NAME.fullmatch(p.name)]
        return sorted(found, key=checkpoint_step)

    def latest_checkpoint(self) -> Path | None:
        """The checkpoint of the highest step; None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def checkpoint_folder(self, step: int) -> Path:
        """Where the checkpoint of `step` is or would be."""
        return self.checkpoints_folder / f"step-{step}"

    def load_weights(self, model: nn.Module) -> int:
        """Puts the weights of the latest checkpoint into `model`, in place.

        Returns:
            The step of that checkpoint.

        Raises:
            ValueError: if there is none, if it is damaged, if its tensors do not fit `model`, or if
                it was written by a run of another configuration.
        """
        folder = self.latest_checkpoint()
        if folder is None:
            raise ValueError(f"{self.path} holds no checkpoint: train there first")
        checkpoint = read_checkpoint(folder)
        if checkpoint.record["fingerprint"] != fingerprint(self.config()):
            raise ValueError(
                f"{folder} was written by a run with another configuration than "
                f"{self.config_file} describes: restore the one or the other"
            )
        weights = weights_from_format_1(checkpoint.tensors[MODEL_FILE])
        load_weights(model, weights, folder / MODEL_FILE)
        return checkpoint_step(folder)

    def plot_curves(self) -> Path:
        """Draws each quantity of `metrics.jsonl` over the steps; returns `curve.png`."""
        return plot_curves(self.metrics(), self.path / "curve.png")

    def write_config(self, config: dict[str, Any]) -> None:
        """Makes `config` the content of `config.json`."""
        self.path.mkdir(parents=True, exist_ok=True)
        _write_object(self.config_file, config)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Makes `summary` the content of `summary.json`."""
        _write_object(self.summary_file, summary)

    def cut_metrics(self, lines: int) -> None:
        """Keeps the first `lines` lines of `metrics.jsonl`, not what a killed run wrote after them.

        Raises:
            ValueError: if there are fewer.
        """
        kept = self._complete_lines()[:lines] if self.metrics_file.exists() else []
        if len(kept) < lines:
            raise ValueError(
                f"{self.metrics_file} has {len(kept)} whole lines, the checkpoint was written "
                f"after {lines}; restore the file, or start a new run in another folder"
            )
        replace_file(self.metrics_file, b"".join(line + b"\n" for line in kept))

    def _complete_lines(self) -> list[bytes]:
        return self.metrics_file.read_bytes().split(b"\n")[:-1]


def checkpoint_step(folder: Path) -> int:
    """The step in the name of a checkpoint folder.

    Raises:
        ValueError: if the name is not step-N.
    """
    match = _CHECKPOINT_NAME.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"a checkpoint folder is named step-N, got {folder.name!r}")
    return int(match[1])


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing, so {path.parent} holds no such run") from None
    return _parse_object(content, str(path))


def _parse_object(content: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where} is not whole JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} must hold a JSON object, got {type(value).__name__}")
    return value


def _write_object(path: Path, value: dict[str, Any]) -> None:
    replace_file(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
