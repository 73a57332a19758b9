"""A run on disk: the paths of its files, how they are read, and which process may write them."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import nn

from linattn_core.errors import expected
from linattn_models.files import replace_file
from linattn_models.training.checkpoint import MODEL_FILE, load_weights, read_checkpoint
from linattn_models.training.config import fingerprint
from linattn_models.validation import json_object

_CHECKPOINT_NAME = re.compile(r"step-\d+")


class RunFolder:
    """The folder of one training run.

        config.json   metrics.jsonl   summary.json   checkpoints/step-N/   tensorboard/

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints_folder = self.path / "checkpoints"
        self._lock_file = self.path / ".lock"
        self._holder_file = self.path / ".lock-holder.json"

    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        traces = (self.config_file, self.metrics_file, self.summary_file, self.checkpoints_folder)
        return any(trace.exists() for trace in traces)

    def config(self) -> dict[str, Any]:
        """`config.json`: the description of the run ("app", ...), "model" and "training".

        Raises:
            ValueError: if the file is missing or not a JSON object.
        """
        return _read_object(self.config_file)

    def summary(self) -> dict[str, Any]:
        """`summary.json`: the results of a run that has ended; raises as `config`."""
        return _read_object(self.summary_file)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, without an incomplete last one; raises as `config`."""
        if not self.metrics_file.exists():
            raise ValueError(expected(str(self.metrics_file), "the log of a run", "no file"))
        return [
            json_object(line, f"{self.metrics_file}, line {number}")
            for number, line in enumerate(self._complete_lines(), start=1)
        ]

    def checkpoints(self) -> list[Path]:
        """The checkpoint folders, oldest first; temporary ones do not count."""
        if not self.checkpoints_folder.is_dir():
            return []
        folders = self.checkpoints_folder.iterdir()
        named = [folder for folder in folders if _CHECKPOINT_NAME.fullmatch(folder.name)]
        return sorted(named, key=checkpoint_step)

    def latest_checkpoint(self) -> Path | None:
        """The checkpoint of the highest step; None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def checkpoint_folder(self, step: int) -> Path:
        """The folder of the checkpoint of `step`; it may not exist."""
        return self.checkpoints_folder / f"step-{step}"

    def load_weights(self, model: nn.Module) -> int:
        """Loads the weights of the latest checkpoint into `model`, in place.

        Returns:
            The step of that checkpoint.

        Raises:
            ValueError: if there is none, if it is damaged, if its tensors do not fit `model`, or if
                it was written by a run of another configuration.
        """
        folder = self.latest_checkpoint()
        if folder is None:
            raise ValueError(expected(str(self.path), "a checkpoint", "none", "train there first"))
        checkpoint = read_checkpoint(folder)
        if checkpoint.record["fingerprint"] != fingerprint(self.config()):
            wanted = f"the configuration in {self.config_file}"
            advice = "restore the one or the other"
            raise ValueError(expected(str(folder), wanted, "another one", advice))
        load_weights(model, checkpoint.weights, folder / MODEL_FILE)
        return checkpoint_step(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for the body; another process gets an error that names this one.

        The system releases the lock when the process ends for any reason.

        Raises:
            ValueError: naming the process that holds the lock.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._lock_file, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(self._held()) from None
        try:
            since = datetime.now().astimezone().isoformat(timespec="seconds")
            holder = {"pid": os.getpid(), "host": platform.node(), "since": since}
            write_json(self._holder_file, holder)
            yield
        finally:
            self._holder_file.unlink(missing_ok=True)
            lock.release()

    def _held(self) -> str:
        try:
            holder = _read_object(self._holder_file)
            holder_name = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
        except (ValueError, KeyError):  # it has just begun, or just ended
            holder_name = "another process"
        advice = "wait for it to end, or stop it"
        return expected(str(self.path), "a run that no other process writes", holder_name, advice)

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes `config` to `config.json`."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.config_file, config)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes `summary` to `summary.json`."""
        write_json(self.summary_file, summary)

    def cut_metrics(self, lines: int) -> None:
        """Cuts `metrics.jsonl` to its first `lines` lines; a killed run may have written more.

        Raises:
            ValueError: if there are fewer.
        """
        first_lines = self._complete_lines()[:lines] if self.metrics_file.exists() else []
        if len(first_lines) < lines:
            wanted = f"the {lines} lines after which the checkpoint was written"
            advice = "restore the file, or start a new run in another folder"
            raise ValueError(expected(str(self.metrics_file), wanted, len(first_lines), advice))
        replace_file(self.metrics_file, b"".join(line + b"\n" for line in first_lines))

    def _complete_lines(self) -> list[bytes]:
        return self.metrics_file.read_bytes().split(b"\n")[:-1]


def checkpoint_step(folder: Path) -> int:
    """The step in the name of a checkpoint folder, step-N."""
    return int(folder.name.removeprefix("step-"))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(expected(str(path), "the record of a run", "no file")) from None
    return json_object(content, str(path))


def write_json(path: Path, value: object, *, compact: bool = False) -> None:
    """Writes `value` to a JSON file atomically: if it fails, an older file stays.

    Args:
        compact: on one line without spaces, for a file that only programs read.

    Raises:
        ValueError: a number in it is NaN or infinite, which JSON does not have.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    replace_file(path, (json.dumps(value, allow_nan=False, **layout) + "\n").encode())
