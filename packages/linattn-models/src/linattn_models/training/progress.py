"""The position of a run, saved with its weights and restored."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from linattn_core.errors import expected
from linattn_models.basics.files import remove_folder
from linattn_models.saving import describe_model
from linattn_models.training.checkpoint import refuse_other_content, write_checkpoint
from linattn_models.training.config import ENDING
from linattn_models.training.processes import on_main_process, share_refusals
from linattn_models.training.run_folder import RunFolder, load_weights, read_own_checkpoint
from linattn_models.training.updater import Updater


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
    def time_body(self) -> Iterator[None]:
        """Adds the time that the body takes to `train_seconds`."""
        started = perf_counter()
        yield
        self.train_seconds += perf_counter() - started


def save_progress(
    folder: RunFolder, updater: Updater, progress: Progress, fingerprint: str
) -> None:
    """Writes the checkpoint of `progress.step`, then removes those beyond `keep_checkpoints`.

    All processes must call it: each has its own random generators, and may have its own part of the
    optimizer's state. The weights are those of `updater.model`.
    """
    state = {
        "fingerprint": fingerprint,
        "steps": updater.config.steps,
        "progress": asdict(progress),
        **updater.get_state(),
    }

    def write() -> None:
        weights, files = updater.model.state_dict(), describe_model(updater.model)
        write_checkpoint(folder.checkpoint_folder(progress.step), weights, state, files)
        for old in folder.checkpoints()[: -updater.config.keep_checkpoints]:
            remove_folder(old)

    on_main_process(write)


def restore_progress(checkpoint: Path, updater: Updater, fingerprint: str) -> Progress:
    """Restores weights, optimizer and random generators; returns the progress."""
    with share_refusals():
        weights, state = read_own_checkpoint(checkpoint, fingerprint)
    config = updater.config
    with refuse_other_content(checkpoint):
        progress = Progress(**state["progress"])
    if progress.step > config.steps:
        wanted = f"at least the {progress.step} that the run of {checkpoint} has made"
        raise ValueError(expected("steps", wanted, config.steps))
    load_weights(updater.model, weights, checkpoint)
    updater.scatter_weights()
    with refuse_other_content(checkpoint):
        updater.set_state(state, progress.step)
    if config.schedule in ENDING and state["steps"] != config.steps:
        warnings.warn(
            f"the {config.schedule} schedule now ends at step {config.steps} instead of "
            f"{state['steps']}: the learning rate jumps to the new curve",
            stacklevel=2,
        )
    return progress
