"""A run on disk: the paths of its files, how they are read, and which process may write them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.basics.files import replace_file
from linattn_models.basics.validation import json_object
from linattn_models.training.checkpoint import MODEL_FILE, Checkpoint, read_checkpoint, require_like
from linattn_models.training.config import fingerprint, first_fault
from linattn_models.weights.model_files import CHECKPOINTS, checkpoint_step, list_checkpoints

Model = TypeVar("Model", bound=nn.Module)


class _Training(BaseModel, strict=True):
    steps: int


class _Config(BaseModel, strict=True):
    """What every `config.json` has."""

    model: dict[str, Any]
    training: _Training


class _Summary(BaseModel, strict=True):
    """What every `summary.json` has."""

    seed: int
    parameters: int
    steps: int
    train_seconds: float
    metrics: dict[str, float | None]
    environment: dict[str, Any]


class _Line(BaseModel, strict=True, extra="allow"):
    """What every line of `metrics.jsonl` has; all else in it are measurements."""

    __pydantic_extra__: dict[str, float | None]
    step: int
    split: str
    seconds: float


class RunFolder:
    """The folder of one training run.

        config.json   metrics.jsonl   summary.json   checkpoints/step-N/   tensorboard/

    `linattn_models.load` reads the model of the newest checkpoint, if it is of this package.

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints_folder = self.path / CHECKPOINTS

    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        traces = (self.config_file, self.metrics_file, self.summary_file, self.checkpoints_folder)
        return any(trace.exists() for trace in traces)

    def config(self) -> dict[str, Any]:
        """`config.json`: the description of the run ("app", ...), "model" and "training".

        Raises:
            ValueError: if the file is missing, or not the configuration of a run.
        """
        return _parse(_read(self.config_file), _Config, str(self.config_file))

    def summary(self) -> dict[str, Any]:
        """`summary.json`: the results of a run that has ended; raises as `config`."""
        return _parse(_read(self.summary_file), _Summary, str(self.summary_file))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, without an incomplete last one; raises as `config`."""
        return self._parse_lines(self._complete_lines())

    def checkpoints(self) -> list[Path]:
        """The checkpoint folders, oldest first; temporary ones do not count."""
        return list_checkpoints(self.path)

    def latest_checkpoint(self) -> Path | None:
        """The checkpoint of the highest step; None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def checkpoint_folder(self, step: int) -> Path:
        """The folder of the checkpoint of `step`; it may not exist."""
        return self.checkpoints_folder / f"step-{step}"

    def load_model(self, build: Callable[[dict[str, Any]], Model]) -> tuple[Model, int]:
        """The model of this run with the weights of its latest checkpoint, and their step.

        Args:
            build: makes the model of "model" in `config.json`. Called after `config.json` is known
                to be that of the checkpoint, so that an edited one costs nothing.

        Raises:
            ValueError: if there is no checkpoint, if it is damaged, if its tensors do not fit the
                model, if it was written by a run of another configuration or at another step than
                its folder's name says, or if `config.json` describes no model.
        """
        folder = self.latest_checkpoint()
        if folder is None:
            raise ValueError(expected(str(self.path), "a checkpoint", "none", "train there first"))
        config = self.config()
        weights, _ = read_own_checkpoint(folder, fingerprint(config))
        try:
            model = build(config["model"])
        except ValueError as error:
            raise ValueError(f"{self.config_file} describes no model: {error}") from None
        load_weights(model, weights, folder)
        return model, checkpoint_step(folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for the body; another process gets an error that names this one.

        The system releases the lock when the process ends for any reason.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        holder = self.path / ".lock-holder"
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            got = holder.read_text(errors="replace") if holder.exists() else "another process"
            wanted, advice = "a run that no other process writes", "wait for it to end, or stop it"
            raise ValueError(expected(str(self.path), wanted, got, advice)) from None
        try:
            since = datetime.now().astimezone().isoformat(timespec="seconds")
            named = f"process {os.getpid()} on {platform.node()} since {since}"
            replace_file(holder, named.encode())
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes `summary` to `summary.json`."""
        write_json(self.summary_file, summary)

    def first_lines(self, lines: int) -> list[bytes]:
        """The first lines of `metrics.jsonl`.

        Raises:
            ValueError: fewer lines, or a damaged one, which a plot would find after the training.
        """
        first_lines = self._complete_lines()[:lines] if self.metrics_file.exists() else []
        if len(first_lines) < lines:
            wanted = f"the {lines} lines after which the checkpoint was written"
            advice = "restore the file, or start a new run in another folder"
            raise ValueError(expected(str(self.metrics_file), wanted, len(first_lines), advice))
        self._parse_lines(first_lines)
        return first_lines

    def _parse_lines(self, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        return [
            _parse(line, _Line, f"{self.metrics_file}, line {number}")
            for number, line in enumerate(lines, start=1)
        ]

    def _complete_lines(self) -> list[bytes]:
        return _read(self.metrics_file).split(b"\n")[:-1]


def write_json(path: Path, value: object, *, compact: bool = False) -> None:
    """Writes `value` to a JSON file atomically: if it fails, an older file stays.

    Args:
        compact: on one line without spaces, for a file that only programs read.

    Raises:
        ValueError: a number in it is NaN or infinite, which JSON does not have.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    replace_file(path, (json.dumps(value, allow_nan=False, **layout) + "\n").encode())


def read_own_checkpoint(folder: Path, of_run: str) -> Checkpoint:
    """A checkpoint of a run with this fingerprint, at the step that its folder's name says."""
    checkpoint = read_checkpoint(folder)
    if checkpoint.state["fingerprint"] != of_run:
        wanted = f"the configuration in {folder.parent.parent / 'config.json'}"
        advice = "restore the one or the other"
        raise ValueError(expected(str(folder), wanted, "another one", advice))
    named, step = checkpoint_step(folder), checkpoint.state["progress"]["step"]
    if step != named:
        wanted, got = f"the checkpoint of step {named}", f"that of {step}"
        advice = "restore that folder, or remove it to go back to the checkpoint before it"
        raise ValueError(expected(str(folder), wanted, got, advice))
    return checkpoint


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Puts the weights of a checkpoint into the model whose they are."""
    require_like(weights, model.state_dict(), folder / MODEL_FILE)
    model.load_state_dict(weights)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(expected(str(path), "a file of a run", "no file")) from None


def _parse(content: bytes, kind: type[BaseModel], where: str) -> dict[str, Any]:
    """The JSON object in `content`, after the fields of `kind` are checked."""
    value = json_object(content, where)
    try:
        kind.model_validate(value)
    except ValidationError as error:
        name, wanted, got = first_fault(error)
        raise ValueError(expected(f"{where}, {name}", wanted, got)) from error
    return value
