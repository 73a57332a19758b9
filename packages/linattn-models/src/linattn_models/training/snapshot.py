"""Saving a live run as a checkpoint, and restoring it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any

from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.files import remove_folder
from linattn_models.training.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANDOM_FILE,
    RECORD_FILE,
    Checkpoint,
    damaged,
    write_checkpoint,
)
from linattn_models.training.config import ENDING
from linattn_models.training.data import random_tensors, seed_all, set_random_tensors
from linattn_models.training.optimization import Updater, load_optimizer_tensors, optimizer_tensors
from linattn_models.training.run_folder import RunFolder, checkpoint_step


@dataclass
class Progress:
    """The position of a run.

    Args:
        step: the number of updates made, which is also the position in the data.
        train_seconds: seconds of all updates, over all resumes, without evaluations and
            checkpoints.
        metrics_lines: lines of `metrics.jsonl` when the last checkpoint was written.
        unlogged_losses: the losses of the updates since the last logged training loss.
        evaluated_at: the step of the last evaluation, 0 if there was none.
        metrics: the result of the last evaluation.
        errors: for each evaluation the step and the metric that the schedule plateau follows.
    """

    step: int = 0
    train_seconds: float = 0.0
    metrics_lines: int = 0
    unlogged_losses: list[float] = field(default_factory=list)
    evaluated_at: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)
    errors: list[tuple[int, float | None]] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time that the body takes to `train_seconds`."""
        started = perf_counter()
        yield
        self.train_seconds += perf_counter() - started


@dataclass(frozen=True)
class Snapshots:
    """Writes and restores the checkpoints of one run.

    Args:
        updater: holds model, optimizer, configuration and processes.
        folder: the folder of the run.
        fingerprint: of the run's configuration; a checkpoint with another one is refused.
    """

    updater: Updater
    folder: RunFolder
    fingerprint: str

    def save(self, progress: Progress) -> None:
        """Writes the checkpoint of `progress.step`, then removes those beyond `keep_checkpoints`.

        All processes must call it, because each has its own random generators.
        """
        random_states = self._random_states()
        if self.updater.accelerator.is_main_process:
            tensors = {
                MODEL_FILE: self._model_tensors(),
                OPTIMIZER_FILE: self._optimizer_tensors(),
                RANDOM_FILE: random_states,
            }
            folder = self.folder.checkpoint_folder(progress.step)
            write_checkpoint(folder, tensors, {**vars(progress), **self._record()})
            for old in self.folder.checkpoints()[: -self.updater.config.keep_checkpoints]:
                remove_folder(old)
        self.updater.accelerator.wait_for_everyone()

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Restores weights, optimizer, loss scale and random generators; returns the progress.

        Raises:
            ValueError: if the checkpoint is of another run, is past the last step, or does not fit
                the model.
        """
        record = _checked(checkpoint)
        progress = Progress(**{item.name: record[item.name] for item in fields(Progress)})
        source = checkpoint.folder / RECORD_FILE
        if record["fingerprint"] != self.fingerprint:
            raise ValueError(expected(str(source), "this run's configuration", "that of another"))
        if progress.step > self.updater.config.steps:
            wanted = f"at least the {progress.step} that the run in {self.folder.path} has made"
            raise ValueError(expected("steps", wanted, self.updater.config.steps))
        weights = checkpoint.fitting(MODEL_FILE, self._model_tensors())
        state = checkpoint.fitting(OPTIMIZER_FILE, self._optimizer_tensors())
        self.updater.model.load_state_dict(weights)
        load_optimizer_tensors(self.updater.optimizer, self.updater.parameters, state)
        if self.updater.accelerator.scaler is not None:
            self.updater.accelerator.scaler.load_state_dict(record["grad_scaler"])
        self._restore_random_state(checkpoint, progress.step)
        self._warn_if_schedule_moves(record["steps"])
        return progress

    def _record(self) -> dict[str, Any]:
        scaler = self.updater.accelerator.scaler
        return {
            "fingerprint": self.fingerprint,
            "processes": self.updater.accelerator.num_processes,
            "device": self.updater.accelerator.device.type,
            "steps": self.updater.config.steps,
            "grad_scaler": None if scaler is None else scaler.state_dict(),
        }

    def _model_tensors(self) -> Mapping[str, Tensor]:
        state = self.updater.model.state_dict()
        for name, value in state.items():
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise ValueError(expected(f"{name!r} of the model's state", "a tensor", kind))
        return state

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        return optimizer_tensors(self.updater.optimizer, self.updater.parameters)

    def _random_states(self) -> dict[str, Tensor]:
        accelerator = self.updater.accelerator
        device = accelerator.device
        own = {name: state[None] for name, state in random_tensors(device).items()}  # (1, words)
        if accelerator.num_processes == 1:
            return own
        gathered = {name: accelerator.gather(state.to(device)) for name, state in own.items()}
        return {name: states.cpu() for name, states in gathered.items()}  # (processes, words)

    def _restore_random_state(self, checkpoint: Checkpoint, step: int) -> None:
        before, now = checkpoint.record, self._record()
        index = self.updater.accelerator.process_index
        if all(before[name] == now[name] for name in ("processes", "device")):
            states = checkpoint.fitting(RANDOM_FILE, self._random_states())
            own = {name: state[index].clone() for name, state in states.items()}
            set_random_tensors(own, self.updater.accelerator.device)
            return
        seed_all(self.updater.config.seed, step, index)
        warnings.warn(
            f"the checkpoint was written by {before['processes']} process(es) on "
            f"{before['device']} and is resumed by {now['processes']} on {now['device']}: random "
            "draws such as dropout start afresh",
            stacklevel=2,
        )

    def _warn_if_schedule_moves(self, steps_before: int) -> None:
        config = self.updater.config
        if config.schedule in ENDING and steps_before != config.steps:
            warnings.warn(
                f"the {config.schedule} schedule now ends at step {config.steps} instead of "
                f"{steps_before}: the learning rate jumps to the new curve",
                stacklevel=2,
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_error(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2
    return pair and _is_count(value[0]) and (value[1] is None or _is_finite(value[1]))


# The check of each field of a record, and what the field must be.
_RECORD: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("step", "metrics_lines", "evaluated_at"), (_is_count, "a count")),
    "train_seconds": (lambda v: _is_finite(v) and v >= 0, "seconds of at least 0"),
    "unlogged_losses": (lambda v: isinstance(v, list) and all(map(_is_finite, v)), "losses"),
    "metrics": (
        lambda v: isinstance(v, dict) and all(x is None or _is_finite(x) for x in v.values()),
        "numbers by name",
    ),
    "errors": (
        lambda v: isinstance(v, list) and all(map(_is_error, v)),
        "steps with a number or null",
    ),
    **dict.fromkeys(("fingerprint", "device"), (lambda v: isinstance(v, str), "text")),
    **dict.fromkeys(("steps", "processes"), (lambda v: _is_count(v) and v > 0, "1 or more")),
    "grad_scaler": (lambda v: v is None or isinstance(v, dict), "a dictionary or null"),
}


def _checked(checkpoint: Checkpoint) -> dict[str, Any]:
    """The record of a checkpoint, after every field is checked."""
    folder = checkpoint.folder
    record = {"errors": [], **checkpoint.record}  # older checkpoints have no "errors"
    checks = {**_RECORD, "step": (lambda v: v == checkpoint_step(folder), "that of the folder")}
    for name, (holds, wanted) in checks.items():
        got = record.get(name, "none")
        if name not in record or not holds(got):
            where = f"{name} in {folder / RECORD_FILE}"
            raise damaged(folder, expected(where, wanted, quote(got)))
    return record
