"""The loop of a run: update, log, evaluate, checkpoint, in that order at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from linattn_models.training.config import TrainingConfig
from linattn_models.training.metrics import MetricsLog, checked_metrics, finite_or_none
from linattn_models.training.optimization import Updater, learning_rate, not_finite
from linattn_models.training.random_state import preserved_random_state
from linattn_models.training.script import StopRequest
from linattn_models.training.snapshot import Progress, Snapshots

Evaluate = Callable[[Any], Mapping[str, float]]

# Losses are read from the device in groups: reading each would make it wait for Python every step.
_MOST_UNREAD = 64


class Loop:
    """Carries a run from where it stands to its last step.

    Args:
        accelerator: device and processes.
        updater: holds the model and makes the updates.
        evaluate: (model) -> metrics by name, or None.
        config: the training configuration.
        snapshots: writes the checkpoints.
        progress: where the run stands.
        log: where measurements go; None on all but the main process.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        updater: Updater,
        evaluate: Evaluate | None,
        config: TrainingConfig,
        snapshots: Snapshots,
        progress: Progress,
        log: MetricsLog | None,
    ) -> None:
        self._accelerator = accelerator
        self._updater = updater
        self._evaluate_model = evaluate
        self._config = config
        self._snapshots = snapshots
        self._progress = progress
        self._log = log
        self._unread: list[Tensor] = []

    def run(self, stop: StopRequest) -> None:
        """Makes the remaining updates, then logs and evaluates what the last step has not.

        Args:
            stop: looked at after every step; once requested, a checkpoint is left and the run ends.

        Raises:
            KeyboardInterrupt: after a requested stop.
            ValueError: if the loss or a weight is no longer finite.
            OSError: if the disk refuses a checkpoint or a line of metrics.
        """
        while self._progress.step < self._config.steps:
            self._advance()
            step = self._progress.step
            if step % self._config.log_every == 0:
                self._log_losses()
            if _is_due(self._config.eval_every, step):
                self._evaluate()
            stopping = self._all_agree_to_stop(stop)
            if (
                stopping
                or step == self._config.steps
                or _is_due(self._config.checkpoint_every, step)
            ):
                self._save()
            if stopping:
                raise KeyboardInterrupt(
                    f"stopped after step {step} of {self._config.steps}; its checkpoint is kept, "
                    "and resume continues from it"
                )
        # After the last checkpoint: a run extended later goes on as if it had never ended here.
        self._log_losses()
        if self._progress.evaluated_at != self._progress.step:
            self._evaluate()

    def _advance(self) -> None:
        with self._progress.timed():
            self._unread.append(self._updater.update(self._progress.step))
        self._progress.step += 1
        if len(self._unread) == _MOST_UNREAD:
            self._read_losses()
        if self._log is not None:
            self._log.advance()

    def _read_losses(self) -> None:
        if not self._unread:
            return
        with self._progress.timed():
            losses = torch.stack(self._unread)  # (steps since the last reading,)
            losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
            read = self._accelerator.reduce(losses, reduction="mean").tolist()
        self._unread.clear()
        for step, loss in enumerate(read, start=self._progress.step - len(read) + 1):
            if not math.isfinite(loss):
                raise not_finite("the loss", loss, step)
        self._progress.unlogged_losses += read

    def _log_losses(self) -> None:
        self._read_losses()
        losses, self._progress.unlogged_losses = self._progress.unlogged_losses, []
        if self._log is not None and losses:
            rate = learning_rate(self._config, self._progress.step - 1)
            values = {"loss": math.fsum(losses) / len(losses), "learning_rate": rate}
            self._log.log(self._progress.step, "train", values, self._progress.train_seconds)

    def _evaluate(self) -> None:
        self._read_losses()
        self._progress.evaluated_at = self._progress.step
        if self._evaluate_model is None:
            return
        if self._log is not None:
            model = self._updater.model
            with (
                kept_modes(model),
                preserved_random_state(self._accelerator.device),
                torch.no_grad(),
            ):
                values = checked_metrics(self._evaluate_model(model.eval()))
            self._log.log(self._progress.step, "eval", values, self._progress.train_seconds)
            self._progress.metrics = {n: finite_or_none(value) for n, value in values.items()}
        self._accelerator.wait_for_everyone()

    def _save(self) -> None:
        self._read_losses()
        self._updater.require_finite_weights(self._progress.step)
        if self._log is not None:
            self._log.sync()
            self._progress.metrics_lines = self._log.lines
        self._snapshots.save(self._progress)

    def _all_agree_to_stop(self, stop: StopRequest) -> bool:
        if self._accelerator.num_processes == 1:
            return stop.requested
        # A signal reaches the processes at different steps; they must leave together.
        asked = torch.tensor(float(stop.requested), device=self._accelerator.device)
        return bool(self._accelerator.reduce(asked, reduction="sum").item())


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Afterwards each module of `model` is in training or evaluation mode as it was before."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
