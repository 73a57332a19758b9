"""`train`: a run from a folder to its summary."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linattn_models.files import remove_leftovers
from linattn_models.training.checkpoint import read_checkpoint
from linattn_models.training.checkpointing import CheckpointKeeper
from linattn_models.training.config import TrainingConfig
from linattn_models.training.data import TrainingData
from linattn_models.training.determinism import deterministic_kernels
from linattn_models.training.environment import environment
from linattn_models.training.identity import DESCRIBED, fingerprint, require_same_run, run_config
from linattn_models.training.interruption import StopRequest
from linattn_models.training.metrics_log import MetricsLog
from linattn_models.training.progress import Progress
from linattn_models.training.random_state import seed_all
from linattn_models.training.run_folder import RunFolder
from linattn_models.training.trainer import Evaluate, Trainer, kept_modes
from linattn_models.training.updates import Loss, Updater, make_accelerator


def train(
    model: nn.Module,
    data: TrainingData,
    *,
    loss: Loss,
    config: TrainingConfig,
    out: str | Path,
    describe: Mapping[str, object],
    model_config: Mapping[str, object],
    evaluate: Evaluate | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """The summary of a run made or continued in the folder `out`; `model` is trained in place.

    A run stopped at any moment and resumed gives the same losses and weights, bit for bit on one
    device, as one that was never stopped; so does a run that ended and is resumed with more `steps`
    (save under a cosine schedule). Under `torchrun` the processes share every batch. The first
    Ctrl-C or SIGTERM finishes the step in hand and leaves a checkpoint.

    Args:
        model: any module; training starts from its weights, so seed before building it.
        data: its examples come in an order that `config.seed` and the step decide.
        loss: (model, batch) -> the mean over the examples of the batch, a scalar tensor.
        config: the training configuration.
        out: the run folder.
        describe: "app", "preset", "dataset", "attention", and whatever else must not change between
            resumes.
        model_config: what the model was built from, for `config.json`; JSON values.
        evaluate: (model) -> metrics by name. Called on the main process, in evaluation mode,
            without gradients and in full precision; what it draws from the global generators does
            not disturb training.
        resume: continue the run in `out` from its latest checkpoint, or from the beginning if it
            has none yet.

    Returns:
        The content of `summary.json`. Its "metrics" are those of the last evaluation, or without
        `evaluate` the last logged loss as "train_loss"; "train_seconds" sums the updates over all
        resumes, without evaluations.

    Raises:
        ValueError: if `out` already holds a run (without `resume`) or none (with it), if the
            configuration differs from the run's, if a checkpoint is damaged, or if the loss is no
            longer finite.
        OSError: if the disk refuses.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, the checkpoint written.

    Cost:
        Time O(steps); a checkpoint costs about twice the bytes of the largest of its files in host
        memory.
    """
    folder = RunFolder(out)
    described = run_config(describe, model_config, config, len(data))
    accelerator = make_accelerator(config)
    if accelerator.is_main_process:
        _require_startable(folder, described, resume)
    accelerator.wait_for_everyone()
    updater = Updater(accelerator, model, data, loss, config)
    keeper = CheckpointKeeper(accelerator, updater, model, config, folder, fingerprint(described))
    seed_all(config.seed, 0, accelerator.process_index)
    progress = Progress()
    latest = folder.latest_checkpoint() if resume else None
    if latest is not None:
        progress = keeper.restore(read_checkpoint(latest))
        if progress.step == config.steps and _has_ended(folder, progress.step):
            return folder.summary()
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        log = None
        if accelerator.is_main_process:
            _begin(folder, described, progress)
            log = stack.enter_context(MetricsLog(folder, progress.step, config.steps))
        stack.enter_context(kept_modes(model))
        stack.enter_context(deterministic_kernels(accelerator.device))
        model.train()
        Trainer(accelerator, updater, model, evaluate, config, keeper, progress, log).run(stop)
        if accelerator.is_main_process:
            folder.write_summary(_summary(folder, described, model, progress, accelerator.device))
        accelerator.wait_for_everyone()
    if stop.requested:
        raise KeyboardInterrupt("stopped after the last step; the run is complete")
    return folder.summary()


def _require_startable(folder: RunFolder, described: Mapping[str, Any], resume: bool) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise ValueError(f"a run needs a folder, {folder.path} is a file")
    if not resume:
        if folder.holds_run():
            raise ValueError(
                f"{folder.path} already holds a run: resume it, or start a new one in another "
                "folder"
            )
        return
    if not folder.holds_run():
        raise ValueError(f"{folder.path} holds no run to resume: start one there without resume")
    require_same_run(folder.config(), described, folder.path)
    if folder.latest_checkpoint() is None:
        print(f"{folder.path} has no checkpoint yet: starting from the beginning", file=sys.stderr)


def _has_ended(folder: RunFolder, step: int) -> bool:
    return folder.summary_file.exists() and folder.summary().get("steps") == step


def _begin(folder: RunFolder, described: dict[str, Any], progress: Progress) -> None:
    folder.write_config(described)
    folder.cut_metrics(progress.metrics_lines)
    for place in (folder.path, folder.checkpoints_folder):
        remove_leftovers(place)


def _summary(
    folder: RunFolder,
    described: Mapping[str, Any],
    model: nn.Module,
    progress: Progress,
    device: torch.device,
) -> dict[str, Any]:
    metrics = progress.metrics
    if not metrics:
        trained = [line["loss"] for line in folder.metrics() if line["split"] == "train"]
        metrics = {"train_loss": trained[-1]}
    return {
        **{name: described[name] for name in DESCRIBED},
        "seed": described["training"]["seed"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": progress.step,
        "train_seconds": round(progress.train_seconds, 3),
        "metrics": metrics,
        "environment": environment(device),
    }
