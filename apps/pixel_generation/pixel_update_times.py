"""How long an update of the weights takes with each attention, measured side by side.

The attentions take turns, round by round, so that whatever else the machine does meanwhile falls on
all of them; the median of the rounds forgets the worst of it. A training would have been a poor
clock: each one runs at another hour, and may be stopped and resumed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pixel_datasets import Images
from pixel_presets import Attention, Recipe
from pixel_runs import build_model
from pixel_tokens import TokenData
from pixel_training import mean_nats
from tqdm import tqdm

from linattn_models.files import replace_file
from linattn_models.training.determinism import deterministic_kernels
from linattn_models.training.environment import environment
from linattn_models.training.updates import Updater, make_accelerator

UPDATES_A_ROUND = 3


@dataclass(frozen=True)
class UpdateTimes:
    """Seconds an update by attention, and where they were measured.

    Attributes:
        dataset, preset: of the models that were timed.
        rounds: how often each attention had its turn.
        seconds: the median of an attention's rounds.
        environment: versions, device and threads.
    """

    dataset: str
    preset: str
    rounds: int
    seconds: Mapping[Attention, float]
    environment: Mapping[str, Any]


def times_kept_in(
    file: Path,
    images: Images,
    recipe: Recipe,
    attentions: Sequence[Attention],
    *,
    preset: str,
    rounds: int,
) -> UpdateTimes:
    """The times in `file`, measured and written there if there is no such file.

    Raises:
        ValueError: the file is damaged, or has the times of other models.
    """
    if file.exists():
        return _checked(_read(file), file, images.name, preset, attentions)
    seconds, where = _measure(images, recipe, attentions, rounds)
    times = UpdateTimes(images.name, preset, rounds, seconds, where)
    replace_file(file, (json.dumps(asdict(times), indent=2) + "\n").encode())
    return times


def _read(file: Path) -> UpdateTimes:
    try:
        times = UpdateTimes(**json.loads(file.read_bytes()))
        sound = all(0 < seconds < math.inf for seconds in times.seconds.values())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} holds no times of updates ({error}): remove it") from None
    if not sound:
        raise ValueError(f"{file}: expected finite times above 0, got {times.seconds}: remove it")
    return times


def _checked(
    times: UpdateTimes, file: Path, dataset: str, preset: str, attentions: Sequence[Attention]
) -> UpdateTimes:
    if (times.dataset, times.preset) != (dataset, preset):
        raise ValueError(
            f"{file}: expected times of {dataset} with the preset {preset}, found those of "
            f"{times.dataset} with {times.preset}: choose another --out"
        )
    absent = [name for name in attentions if name not in times.seconds]
    if absent:
        raise ValueError(
            f"{file}: expected times of {', '.join(attentions)}, found none of "
            f"{', '.join(absent)}: choose another --out, since all are timed together"
        )
    return times


def _measure(
    images: Images, recipe: Recipe, attentions: Sequence[Attention], rounds: int
) -> tuple[dict[Attention, float], dict[str, object]]:
    config = recipe.training(seed=0)
    accelerator = make_accelerator(config)
    data = TokenData(images.train, recipe.layout)
    updaters = {
        name: Updater(
            accelerator, build_model(recipe, name, images).train(), data, mean_nats, config
        )
        for name in attentions
    }
    readings: dict[Attention, list[float]] = {name: [] for name in attentions}
    with deterministic_kernels(accelerator.device):
        for updater in updaters.values():
            _seconds_an_update(updater, 0, accelerator.device)  # warms up
        for turn in tqdm(range(1, rounds + 1), desc="timing", unit="round"):
            for name, updater in updaters.items():
                first = turn * UPDATES_A_ROUND
                readings[name].append(_seconds_an_update(updater, first, accelerator.device))
    seconds = {name: median(taken) for name, taken in readings.items()}
    return seconds, environment(accelerator.device)


def _seconds_an_update(updater: Updater, first: int, device: torch.device) -> float:
    begin = time.perf_counter()
    for step in range(first, first + UPDATES_A_ROUND):
        updater.update(step)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / UPDATES_A_ROUND
