"""The loop of a run: update, log, evaluate, checkpoint, in that order at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.modes import evaluating
from linattn_models.training.metrics import MetricsLog, finite_or_none
from linattn_models.training.processes import share_refusals
from linattn_models.training.progress import Progress
from linattn_models.training.random_state import preserve_random_state
from linattn_models.training.schedule import learning_rate
from linattn_models.training.stopping import StopRequest
from linattn_models.training.updater import Updater, not_finite

Evaluate = Callable[[Any], Mapping[str, float]]

# Losses are read from the device in groups, because each reading waits for the device.
_MOST_UNREAD = 64


@dataclass
class Loop:
    """Continues a run from its current step to its last.

    Args:
        updater: makes the updates; holds model, configuration and processes.
        evaluate: (model) -> metrics by name, or None.
        save: writes a checkpoint of the progress; every process calls it.
        progress: the position of the run.
        log: the log of measurements; None on all processes but the main one.
        monitor: the metric that the schedule plateau follows.
    """

    updater: Updater
    evaluate: Evaluate | None
    save: Callable[[Progress], None]
    progress: Progress
    log: MetricsLog | None
    monitor: str | None = None
    _unread: list[Tensor] = field(default_factory=list)

    def run(self, stop: StopRequest) -> None:
        """Makes the remaining updates; logs and evaluates after the last one too.

        Args:
            stop: read after every step; once requested, a checkpoint is written and
                KeyboardInterrupt is raised.
        """
        config = self.updater.config
        while self.progress.step < config.steps:
            self._advance()
            step = self.progress.step
            if step == 1 or step % config.log_every == 0:  # the first one at once
                self._log_losses()
            if _is_due(config.eval_every, step):
                self._measure()
            stopping = self._all_agree_to_stop(stop)
            if stopping or step == config.steps or _is_due(config.checkpoint_every, step):
                self._save()
            if stopping:
                raise KeyboardInterrupt(
                    f"stopped after step {step} of {config.steps}; its checkpoint is kept, "
                    "and resume continues from it"
                )
        # After the last checkpoint, so that a run that is extended later equals an unbroken one.
        self._log_losses()
        if self.progress.evaluated_at != self.progress.step:
            self._measure()

    def _advance(self) -> None:
        with self.progress.time_body():
            self._unread.append(self.updater.update(self.progress.step, self.progress.errors))
        self.progress.step += 1
        if len(self._unread) == _MOST_UNREAD:
            self._read_losses()
        if self.log is not None:
            self.log.advance()

    def _read_losses(self) -> None:
        if not self._unread:
            return
        with self.progress.time_body():
            losses = torch.stack(self._unread)  # (steps since the last reading,)
            losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
            read = self.updater.accelerator.reduce(losses, reduction="mean").tolist()
        self._unread.clear()
        for step, loss in enumerate(read, start=self.progress.step - len(read) + 1):
            if not math.isfinite(loss):
                raise not_finite("the loss", loss, step)
        self.progress.unlogged_losses += read

    def _log_losses(self) -> None:
        self._read_losses()
        losses, self.progress.unlogged_losses = self.progress.unlogged_losses, []
        if not losses:
            return
        rate = learning_rate(self.updater.config, self.progress.step - 1, self.progress.errors)
        values = {"loss": math.fsum(losses) / len(losses), "learning_rate": rate}
        self._write("train", values)

    def _measure(self) -> None:
        self._read_losses()
        self.progress.evaluated_at = self.progress.step
        if self.evaluate is None:
            return
        with (
            self.updater.whole_model() as model,
            evaluating(model),
            preserve_random_state(self.updater.accelerator.device),
            torch.no_grad(),
        ):
            values = {n: float(x) for n, x in self.evaluate(model).items()}
        self._write("eval", values)
        self.progress.metrics = finite_or_none(values)
        if self.monitor is not None:
            self.progress.errors.append((self.progress.step, self._read_monitored(self.monitor)))

    def _write(self, split: str, values: Mapping[str, float]) -> None:
        with share_refusals():
            if self.log is not None:
                self.log.log(self.progress.step, split, values, self.progress.train_seconds)

    def _read_monitored(self, name: str) -> float | None:
        """The metric `name` of the last evaluation, on every process."""
        metrics = self.progress.metrics
        if name not in metrics:
            wanted = f"{name!r}, which the schedule 'plateau' follows"
            raise ValueError(expected("metrics", wanted, ", ".join(metrics) or "none"))
        values = [metrics[name]]
        broadcast_object_list(values)  # the same bits on all
        return values[0]

    def _save(self) -> None:
        self._read_losses()
        self.updater.gather_weights()
        self.updater.require_finite_weights(self.progress.step)
        with share_refusals():
            if self.log is not None:
                self.log.sync()
                self.progress.metrics_lines = self.log.lines
        self.save(self.progress)

    def _all_agree_to_stop(self, stop: StopRequest) -> bool:
        accelerator = self.updater.accelerator
        if accelerator.num_processes == 1:
            return stop.requested
        # A signal reaches the processes at different steps; they must leave together.
        asked = torch.tensor(float(stop.requested), device=accelerator.device)
        return bool(accelerator.reduce(asked, reduction="sum").item())


def _is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
