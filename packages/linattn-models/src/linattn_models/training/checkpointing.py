"""From a live run to a checkpoint and back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from linattn_models.files import remove_folder
from linattn_models.training.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RANDOM_FILE,
    RECORD_FILE,
    Checkpoint,
    load_weights,
    write_checkpoint,
)
from linattn_models.training.config import TrainingConfig
from linattn_models.training.optimizers import load_optimizer_tensors, optimizer_tensors
from linattn_models.training.progress import Progress
from linattn_models.training.random_state import random_tensors, seed_all, set_random_tensors
from linattn_models.training.run_folder import RunFolder
from linattn_models.training.updates import Updater


class CheckpointKeeper:
    """Writes and restores the checkpoints of one run.

    Args:
        accelerator: device and processes; only the main process writes.
        updater: holds the optimizer.
        model: what is trained.
        config: the training configuration.
        folder: where the run is kept.
        fingerprint: of the run's configuration; a checkpoint with another one is refused.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        updater: Updater,
        model: nn.Module,
        config: TrainingConfig,
        folder: RunFolder,
        fingerprint: str,
    ) -> None:
        self._accelerator = accelerator
        self._updater = updater
        self._model = model
        self._config = config
        self._folder = folder
        self._fingerprint = fingerprint

    def save(self, progress: Progress) -> None:
        """Writes the checkpoint of `progress.step`, then removes those beyond `keep_checkpoints`.

        All processes call it: each has random generators of its own.
        """
        random_states = self._random_states()
        if self._accelerator.is_main_process:
            tensors = {
                MODEL_FILE: self._model_tensors(),
                OPTIMIZER_FILE: optimizer_tensors(
                    self._updater.optimizer, self._updater.parameters
                ),
                RANDOM_FILE: random_states,
            }
            folder = self._folder.checkpoint_folder(progress.step)
            write_checkpoint(folder, tensors, {**vars(progress), **self._record()})
            for old in self._folder.checkpoints()[: -self._config.keep_checkpoints]:
                remove_folder(old)
        self._accelerator.wait_for_everyone()

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Puts weights, optimizer, loss scale and random generators back, and returns the progress.

        Raises:
            ValueError: if it is of another run, past the last step, or does not fit the model.
        """
        record, source = checkpoint.record, checkpoint.folder / RECORD_FILE
        progress = Progress.from_record(record, source)
        for name in self._record().keys() - record.keys():
            raise ValueError(f"{source} is damaged: it lacks the field {name!r}")
        if record["fingerprint"] != self._fingerprint:
            raise ValueError(f"{source} is of a run with another configuration than this one")
        if progress.step > self._config.steps:
            raise ValueError(
                f"the run in {self._folder.path} has made {progress.step} steps already, "
                f"so steps must be at least that, got {self._config.steps}"
            )
        self._restore_tensors(checkpoint)
        if self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(record["grad_scaler"])
        self._restore_random_state(checkpoint, progress.step)
        self._warn_if_schedule_moves(record["steps"])
        return progress

    def _record(self) -> dict[str, Any]:
        scaler = self._accelerator.scaler
        return {
            "fingerprint": self._fingerprint,
            "processes": self._accelerator.num_processes,
            "device": self._accelerator.device.type,
            "steps": self._config.steps,
            "grad_scaler": None if scaler is None else scaler.state_dict(),
        }

    def _model_tensors(self) -> Mapping[str, Tensor]:
        state = self._model.state_dict()
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"a checkpoint holds tensors only, the model's state has {name!r} of type "
                    f"{type(value).__name__}"
                )
        return state

    def _restore_tensors(self, checkpoint: Checkpoint) -> None:
        weights, state = checkpoint.tensors[MODEL_FILE], checkpoint.tensors[OPTIMIZER_FILE]
        load_weights(self._model, weights, checkpoint.folder / MODEL_FILE)
        load_optimizer_tensors(
            self._updater.optimizer,
            self._updater.parameters,
            state,
            checkpoint.folder / OPTIMIZER_FILE,
        )

    def _random_states(self) -> dict[str, Tensor]:
        device = self._accelerator.device
        own = {name: state[None] for name, state in random_tensors(device).items()}  # (1, words)
        if self._accelerator.num_processes == 1:
            return own
        gathered = {name: self._accelerator.gather(state.to(device)) for name, state in own.items()}
        return {name: states.cpu() for name, states in gathered.items()}  # (processes, words)

    def _restore_random_state(self, checkpoint: Checkpoint, step: int) -> None:
        before, now = checkpoint.record, self._record()
        index = self._accelerator.process_index
        if all(before[name] == now[name] for name in ("processes", "device")):
            states = checkpoint.tensors[RANDOM_FILE]
            own = {name: state[index].clone() for name, state in states.items()}
            set_random_tensors(own, self._accelerator.device)
            return
        seed_all(self._config.seed, step, index)
        warnings.warn(
            f"the checkpoint was written by {before['processes']} process(es) on "
            f"{before['device']} and is resumed by {now['processes']} on {now['device']}: random "
            "draws such as dropout start afresh",
            stacklevel=2,
        )

    def _warn_if_schedule_moves(self, steps_before: int) -> None:
        if self._config.schedule == "cosine" and steps_before != self._config.steps:
            warnings.warn(
                f"the cosine schedule now ends at step {self._config.steps} instead of "
                f"{steps_before}: the learning rate jumps to the new curve",
                stacklevel=2,
            )
