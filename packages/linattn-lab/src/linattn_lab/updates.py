"""The seconds that an update of training takes: of several models, in turns.

`read_times` measures once: a comparison that continues has the same time budgets as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_lab.store import read_model
from linattn_lab.timing import time_calls
from linattn_models.training import (
    Order,
    TrainingData,
    TrainingFlags,
    Updater,
    deterministic_kernels,
    environment,
    freed_memory_kept,
    make_accelerator,
    write_json,
)

_UPDATES_PER_ROUND = 3

Loss = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]


def measure_updates(
    models: Mapping[str, nn.Module],
    data: TrainingData,
    loss: Loss,
    flags: TrainingFlags,
    rounds: int,
    order: Order | None = None,
) -> dict[str, Any]:
    """The seconds of an update of each model, with rounds and environment, as in timings.json.

    The models take turns, round by round, so that other load on the machine affects all of them;
    a time is the median over the rounds. The measurement changes the weights of the models.
    """
    accelerator = make_accelerator(flags.config())
    device = accelerator.device
    updaters = {
        name: Updater(accelerator, model.train(), data, loss, flags.config(), order)
        for name, model in models.items()
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    with deterministic_kernels(device), freed_memory_kept(device):
        for updater in updaters.values():
            _seconds_per_update(updater, 0, device)  # warm-up
        turns = range(1, rounds + 1)
        for turn in tqdm(turns, desc="timing", unit="round", disable=None):
            for name, updater in updaters.items():
                times[name].append(_seconds_per_update(updater, turn * _UPDATES_PER_ROUND, device))
    seconds = {name: median(of_model) for name, of_model in times.items()}
    return {"seconds": seconds, "rounds": rounds, "environment": environment(device)}


def _seconds_per_update(updater: Updater, first: int, device: torch.device) -> float:
    steps = iter(range(first, first + _UPDATES_PER_ROUND))
    times = time_calls(device, lambda: updater.update(next(steps)), _UPDATES_PER_ROUND)
    return sum(times) / _UPDATES_PER_ROUND


class UpdateTimes(BaseModel, frozen=True, extra="allow"):
    """The content of timings.json: what updates cost, where, and of which models.

    Args:
        seconds: of an update, by model.
        rounds: the turns that each model had.
        environment: versions, device, threads.
    """

    seconds: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(min_length=1)
    rounds: int
    environment: dict[str, Any]


def read_times(
    file: Path,
    about: Mapping[str, object],
    names: Collection[str],
    measure: Callable[[], Mapping[str, object]],
) -> UpdateTimes:
    """The content of `file`; if the file does not exist, measures the times and writes it.

    Args:
        file: a JSON file.
        about: what the times depend on, such as the dataset and the preset; JSON values.
        names: the models that must be in the file.
        measure: returns the fields of `UpdateTimes`, and more if need be.
    """
    if not file.exists():
        times = UpdateTimes(**{**about, **measure()})  # type: ignore[arg-type]
        write_json(file, times.model_dump())
        return times
    times = read_model(file, UpdateTimes)
    other = {name: (times.model_extra or {}).get(name) for name in about}
    if other != dict(about) or not times.seconds.keys() >= set(names):
        wanted = f"times of {dict(about)}, of {', '.join(names)} together"
        got = f"times of {other}, of {', '.join(times.seconds)}"
        raise ValueError(expected(str(file), wanted, got, "choose another --out"))
    if (threads := times.environment.get("threads")) != torch.get_num_threads():
        warnings.warn(
            f"updates are timed as in {file}, with {threads} threads; this process has "
            f"{torch.get_num_threads()}",
            stacklevel=2,
        )
    return times
