"""`train`: makes or continues a run in a folder."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from linattn_core.errors import expected
from linattn_models.basics.files import remove_leftovers, replace_file
from linattn_models.basics.modes import preserve_modes
from linattn_models.training.allocation import freed_memory_kept
from linattn_models.training.config import TrainingConfig, fingerprint, require_same_run, run_config
from linattn_models.training.data import Order, TrainingData
from linattn_models.training.loop import Evaluate, Loop
from linattn_models.training.metrics import MetricsLog
from linattn_models.training.processes import (
    on_main_process,
    require_same_settings,
    share_refusals,
    start_processes,
)
from linattn_models.training.progress import Progress, restore_progress, save_progress
from linattn_models.training.random_state import seed_all
from linattn_models.training.run_folder import RunFolder, write_json
from linattn_models.training.runtime import deterministic_kernels, environment, make_accelerator
from linattn_models.training.stopping import StopRequest
from linattn_models.training.updater import Loss, Updater
from linattn_models.weights.model_files import require_tensors


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
    order: Order | None = None,
    monitor: str | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Trains `model` in place, as a new or resumed run in the folder `out`; returns its summary.

    A run that was stopped at any moment and resumed gives the same losses and weights, bit for bit
    on one device, as one that was never stopped; so does a run that ended and is resumed with more
    `steps` (except with a cosine or trapezoid schedule, or if more steps have a longer warm-up with
    `warmup_steps=None`: the run keeps the one that it began with, with a warning). The first Ctrl-C
    or SIGTERM finishes the current step and writes a checkpoint.

    Under `torchrun` each process takes a part of every batch; with `config.parallel` "fsdp" also of
    the weights, with `config.context_parallel` of the sequences. Any number of processes may resume
    a run, divided in any way.

    Args:
        model: any module with weights in float32 or float64; training starts from them, so seed
            before building it.
        data: the examples, in an order that depends on `config.seed` and the step.
        loss: (model, batch) -> the mean over the examples of the batch, a scalar tensor. A mean
            over anything of which examples have different numbers, such as symbols, is returned as
            a pair, the sum and the number of terms, both scalar tensors. Then several processes
            make the same updates as one. With `config.context_parallel`, both are of the process's
            own positions, and a batch must depend on its indices alone.
        config: the training configuration.
        out: the run folder.
        describe: the application's description of the run, for `config.json` and `summary.json`,
            such as its name and the dataset; JSON values that must not change between resumes.
        model_config: the settings of the model, for `config.json`; JSON values.
        evaluate: (model) -> metrics by name. Called on every process with the whole model, in
            evaluation mode, without gradients and in full precision; its use of the global random
            generators does not change the training. Several processes divide the work by
            `take_share` and `sum_over_processes`; the metrics of the first one count.
        order: the examples of each update, such as batches of similar lengths; by default
            permutations cut into batches of `config.batch_size`.
        monitor: the metric of `evaluate` that the schedule plateau follows; smaller is better.
        resume: continue the run in `out` from its latest checkpoint, or from the beginning if it
            has none yet.

    Returns:
        The content of `summary.json`. Its "metrics" are those of the last evaluation, or without
        `evaluate` the last logged loss as "train_loss"; "train_seconds" sums the updates over all
        resumes, without evaluations.

    Raises:
        ValueError: if `out` already holds a run (without `resume`) or none (with it), if the
            configuration differs from that of the run, if a checkpoint is damaged, if the loss is
            no longer finite, if another process writes the run, or if the processes of torchrun
            have different settings. All of these raise what one of them does.
        TypeError: if the model's state dict holds more than tensors.
        OSError: if a file cannot be written.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the checkpoint is written then.

    Cost: O(steps) time; a checkpoint needs about twice the bytes of its largest file in main
    memory. On a CPU with glibc, the process keeps the memory of freed tensors for new ones until
    training ends. An update of the paper's MNIST model then takes a tenth less time.
    """
    folder = RunFolder(out)
    start_processes()
    with share_refusals():
        require_tensors(model.state_dict())
        followed = _metric_to_follow(config, monitor, evaluate)
        begun = folder.config() if resume and folder.holds_run() else None
        asked, config = config, config.settle_warmup(begun)
        described = run_config(describe, model_config, config, len(data))
    given = {"monitor": monitor, "resume": resume, "evaluate": evaluate is not None}
    require_same_settings({**described, **given})
    accelerator = make_accelerator(config)
    where = environment(accelerator.device)  # the checkout may have another commit at the end
    require_startable = partial(_require_startable, folder, described, resume)
    on_main_process(require_startable)
    updater = Updater(accelerator, model, data, loss, config, order)
    fixed = fingerprint(described)

    def save(progress: Progress) -> None:
        save_progress(folder, updater, progress, fixed)

    with ExitStack() as stack:
        on_main_process(lambda: stack.enter_context(folder.lock()))
        on_main_process(require_startable)  # another run may have ended there
        seed_all(config.seed, 0, accelerator.process_index)
        progress = Progress()
        latest = folder.latest_checkpoint() if resume else None
        # Another one where processes see different folders.
        require_same_settings({"the newest checkpoint": latest and latest.name})
        if latest is not None:
            progress = restore_progress(latest, updater, fixed)
            if progress.step == config.steps and _has_ended(folder, progress.step):
                model.to(accelerator.device)
                return folder.summary()
        if config.warmup != asked.warmup:
            warnings.warn(
                f"the warm-up stays at the {config.warmup} updates with which the run began: "
                f"a new run of {config.steps} steps would have {asked.warmup}",
                stacklevel=2,
            )
        stop = stack.enter_context(StopRequest())
        on_main_process(lambda: _begin(folder, described, progress))
        open_log = partial(MetricsLog, folder.metrics_file, progress.step, config.steps)
        log = on_main_process(lambda: stack.enter_context(open_log()))
        stack.enter_context(preserve_modes(updater.trained))
        stack.enter_context(deterministic_kernels(accelerator.device))
        stack.enter_context(freed_memory_kept(accelerator.device))
        updater.trained.train()
        Loop(updater, evaluate, save, progress, log, followed).run(stop)
        updater.gather_weights()
        model.to(accelerator.device)
        of_app = {name: described[name] for name in describe}
        on_main_process(
            lambda: folder.write_summary(of_app | _summarize(folder, updater, progress, where))
        )
    if stop.requested:
        raise KeyboardInterrupt("stopped after the last step; the run is complete")
    return folder.summary()


def _require_startable(folder: RunFolder, described: Mapping[str, Any], resume: bool) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise ValueError(expected(str(folder.path), "a folder for the run", "a file"))
    if not resume and folder.holds_run():
        wanted, got = "a folder for a new run", "one that already holds a run"
        advice = "resume it (--resume), or choose another folder (--out)"
        raise ValueError(expected(str(folder.path), wanted, got, advice))
    if resume and not folder.holds_run():
        advice = "start one there without resume"
        raise ValueError(expected(str(folder.path), "a run to resume", "none", advice))
    if resume:
        require_same_run(folder.config(), described, folder.path)


def _metric_to_follow(config: TrainingConfig, monitor: str | None, evaluate: object) -> str | None:
    if config.schedule != "plateau":
        return None
    if monitor is None or evaluate is None:
        advice = "choose another schedule"
        raise ValueError(expected("the schedule 'plateau'", "an error to follow", "none", advice))
    return monitor


def _has_ended(folder: RunFolder, step: int) -> bool:
    return folder.summary_file.exists() and folder.summary().get("steps") == step


def _begin(folder: RunFolder, described: dict[str, Any], progress: Progress) -> None:
    if folder.holds_run() and not progress.step:
        print(f"{folder.path} has no checkpoint yet: starting from the beginning", file=sys.stderr)
    lines = folder.first_lines(progress.metrics_lines)  # a killed run may have written more
    folder.summary_file.unlink(missing_ok=True)  # that of fewer steps
    write_json(folder.config_file, described)
    replace_file(folder.metrics_file, b"".join(line + b"\n" for line in lines))
    for place in (folder.path, folder.checkpoints_folder):
        remove_leftovers(place)


def _summarize(
    folder: RunFolder, updater: Updater, progress: Progress, where: dict[str, object]
) -> dict[str, Any]:
    metrics = progress.metrics
    if not metrics:
        trained = [line["loss"] for line in folder.metrics() if line["split"] == "train"]
        metrics = {"train_loss": trained[-1]}
    return {
        "seed": updater.config.seed,
        "parameters": sum(parameter.numel() for parameter in updater.model.parameters()),
        "steps": progress.step,
        "train_seconds": round(progress.train_seconds, 3),
        "metrics": metrics,
        "environment": where,
    }
