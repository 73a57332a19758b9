"""Comparison of several runs, for equal numbers of updates or equal time, and their records."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from linattn_core.errors import expected, quote
from linattn_models.files import replace_file
from linattn_models.memory import peak_memory
from linattn_models.training.allocation import freed_memory_kept
from linattn_models.training.config import TrainingFlags, flatten
from linattn_models.training.data import Order, TrainingData
from linattn_models.training.optimization import Loss, Updater
from linattn_models.training.run_folder import RunFolder, write_json
from linattn_models.training.runtime import deterministic_kernels, environment, make_accelerator
from linattn_models.validation import json_object

_UPDATES_PER_ROUND = 3
_NEEDED = {"rounds", "environment"}  # what a file of times must have besides "seconds"
_EVALUATIONS = 8  # while a model trains, at least: the points of its curve


def trained_run(
    out: Path,
    train: Callable[[bool], object],
    expected_config: Mapping[str, object],
    ended: Callable[[Mapping[str, Any]], bool] = lambda summary: True,
) -> RunFolder:
    """The completed run in `out`: trained, resumed, or only read if it is complete already.

    Args:
        out: the run folder.
        train: makes the run; its argument says whether to resume.
        expected_config: as for `require_run`.
        ended: whether a summary is complete, for applications that add to it after training.

    Raises:
        ValueError: `out` holds a run of another configuration.
    """
    run = RunFolder(out)
    begun = run.holds_run()
    if begun:
        require_run(run, expected_config)
    if not (begun and run.summary_file.exists() and ended(run.summary())):
        train(begun)
    return run


def require_run(run: RunFolder, expected_config: Mapping[str, object]) -> None:
    """Refuses a run whose `config.json` differs from what is expected.

    Args:
        expected_config: values by name, nested names with dots: {"training.steps": 20}.

    Raises:
        ValueError: naming the first field that differs.
    """
    config = flatten(run.config())
    for name, value in expected_config.items():
        if config.get(name) != value:
            advice = f"choose another folder than {run.path}"
            raise ValueError(
                expected(f"{name} of the run in {run.path}", value, config.get(name), advice)
            )


def run_summary(run: RunFolder, app: str) -> dict[str, Any]:
    """The summary of a run of `app` that has ended.

    Raises:
        ValueError: if it has not ended, or is a run of another application.
    """
    return _of_app(run.summary(), run, app)


def app_config(run: RunFolder, app: str, names: Collection[str]) -> dict[str, Any]:
    """The `config.json` of a run of `app`.

    Args:
        names: the values that must be in it.

    Raises:
        ValueError: the run is of another application, or a value is missing.
    """
    config = _of_app(run.config(), run, app)
    if absent := sorted(set(names) - config.keys()):
        raise ValueError(expected(str(run.config_file), ", ".join(absent), "none in it"))
    return config


def _of_app(record: dict[str, Any], run: RunFolder, app: str) -> dict[str, Any]:
    if record.get("app") != app:
        got = f"one of {quote(record.get('app'))}"
        raise ValueError(expected(str(run.path), f"a run of {app}", got))
    return record


def copy_records(run: RunFolder, folder: Path) -> None:
    """Copies config.json, metrics.jsonl and summary.json of `run` into `folder`: no weights.

    The two .json files become compact: a report reads the copies, people read the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in (run.config_file, run.metrics_file, run.summary_file):
        _copy(file, folder / file.name)


def publish(out: Path, folder: Path, files: Iterable[str], runs: Iterable[RunFolder] = ()) -> None:
    """Copies files of `out` and the records of runs in it to the same places in `folder`.

    The copies of .json files are compact.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        _copy(out / file, folder / file)
    for run in runs:
        copy_records(run, folder / run.path.relative_to(out))


def _copy(file: Path, copy: Path) -> None:
    content = file.read_bytes()
    if file.suffix == ".json":
        write_json(copy, json_object(content, str(file)), compact=True)
    else:
        replace_file(copy, content)


def with_steps(flags: TrainingFlags, steps: int) -> TrainingFlags:
    """The flags with `steps` updates, and with at least eight evaluations (if `steps` >= 8)."""
    share = max(1, steps // _EVALUATIONS)
    return dataclasses.replace(
        flags,
        steps=steps,
        eval_every=min(share, flags.eval_every or share),
        checkpoint_every=min(share, flags.checkpoint_every or share),
    )


def updates_within(seconds: float, seconds_per_update: float) -> int:
    """How many whole updates fit into `seconds`, at least 1."""
    # (n * s) / s may round to slightly less than n.
    return max(1, math.floor(seconds / seconds_per_update * (1 + 1e-9)))


def measure_updates(
    models: Mapping[str, nn.Module],
    data: TrainingData,
    loss: Loss,
    flags: TrainingFlags,
    rounds: int,
    order: Order | None = None,
) -> tuple[dict[str, float], dict[str, object]]:
    """The seconds of an update of each model, by name, and the environment.

    The models take turns, round by round, so that other load on the machine affects all of them;
    a time is the median over the rounds. The measurement changes the weights of the models.
    """
    config = flags.config()
    accelerator = make_accelerator(config)
    device = accelerator.device
    updaters = {
        name: Updater(accelerator, model.train(), data, loss, config, order)
        for name, model in models.items()
    }
    readings: dict[str, list[float]] = {name: [] for name in models}
    with deterministic_kernels(device), freed_memory_kept(device):
        for updater in updaters.values():
            _seconds_per_update(updater, 0, device)  # warm-up
        for turn in tqdm(range(1, rounds + 1), desc="timing", unit="round"):
            for name, updater in updaters.items():
                seconds = _seconds_per_update(updater, turn * _UPDATES_PER_ROUND, device)
                readings[name].append(seconds)
    return {name: median(times) for name, times in readings.items()}, environment(device)


def recorded_times(
    file: Path,
    about: Mapping[str, object],
    names: Collection[str],
    measure: Callable[[], tuple[Mapping[str, float], Mapping[str, object]]],
) -> dict[str, Any]:
    """The content of `file`; if the file does not exist, measures the times and writes it.

    So a comparison that continues after an interruption has the same time budgets as before.

    Args:
        file: a JSON file.
        about: what the times depend on, such as the dataset and the preset; JSON values.
        names: the models that must be in the file.
        measure: returns seconds by name, and the other content of the file: "rounds" (the turns of
            each model), "environment", and more.

    Returns:
        `about`, "seconds" by name, and the other content.

    Raises:
        ValueError: the file is damaged, or has the times of other models.
    """
    if not file.exists():
        seconds, others = measure()
        timing: dict[str, Any] = {**about, "seconds": seconds, **others}
        write_json(file, timing)
        return timing
    timing = _read_times(file)
    other = {name: timing.get(name) for name in about}
    absent = [name for name in names if name not in timing["seconds"]]
    if other != dict(about) or absent:
        wanted = f"times of {dict(about)}, of {', '.join(names)} together"
        got = f"times of {other}, of {', '.join(timing['seconds'])}"
        raise ValueError(expected(str(file), wanted, got, "choose another --out"))
    return timing


def _read_times(file: Path) -> dict[str, Any]:
    wanted, advice = "the times of updates", "remove it, and they are measured again"
    try:
        timing = json_object(file.read_bytes(), "the file")
    except ValueError as error:
        raise ValueError(expected(str(file), wanted, f"a fault in it ({error})", advice)) from None
    seconds = timing.get("seconds")
    values = seconds.values() if isinstance(seconds, dict) and seconds else [None]
    if not all(isinstance(x, int | float) and 0 < x < math.inf for x in values):
        raise ValueError(expected(str(file), wanted, quote(seconds), advice))
    if absent := _NEEDED - timing.keys():
        raise ValueError(expected(str(file), ", ".join(sorted(absent)), "none in it", advice))
    return timing


def measure_memory(
    models: Mapping[str, nn.Module],
    data: TrainingData,
    loss: Loss,
    flags: TrainingFlags,
    order: Order | None = None,
) -> dict[str, float]:
    """The bytes by which the memory in use rises during an update of each model, by name.

    The first update is made twice and the second one is measured; the weights change.
    """
    config = flags.config()
    accelerator = make_accelerator(config)
    peaks = {}
    for name, model in models.items():
        updater = Updater(accelerator, model.train(), data, loss, config, order)
        updater.update(0)  # allocates what the optimizer keeps
        peaks[name] = peak_memory(accelerator.device, partial(updater.update, 0))[1]
    return peaks


def _seconds_per_update(updater: Updater, first: int, device: torch.device) -> float:
    begin = time.perf_counter()
    for step in range(first, first + _UPDATES_PER_ROUND):
        updater.update(step)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / _UPDATES_PER_ROUND
