"""What an update costs, on frames of noise: seconds and memory, each model in a process of its own.

The processes take turns, so that other load on the machine falls on all of them, and one that
crashes or is killed takes no other with it.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linattn_lab.timing import clock
from linattn_models.memory import lacks_memory, peak_memory
from linattn_models.training import Updater, environment, make_accelerator
from speech.audio import RATE
from speech.batches import Batch
from speech.features import BINS, filterbank
from speech.models import build_model
from speech.presets import Recipe
from speech.training import recognizer_loss

PHONES = 72
FRAMES_PER_PHONE = 12  # frames come every 10 ms
LONGEST = 2_400
MEAN = 800


class Noise:
    """Utterances of noise: training data, whose examples are numbers of frames, and their order.

    Args:
        lengths: the frames of each utterance of every update; may be replaced.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def indices(self, step: int) -> Tensor:
        """The lengths, for every step."""
        return self.lengths

    def batch(self, lengths: Tensor) -> Batch:
        """Frames and phones for these lengths, as `Speech.batch` gives them."""
        generator = torch.Generator().manual_seed(0)
        phones = (lengths // FRAMES_PER_PHONE).clamp(min=1)
        rows, longest, most = len(lengths), int(lengths.max()), int(phones.max())
        return {
            "frames": torch.randn(rows, longest, BINS, generator=generator),
            "lengths": lengths,
            "targets": torch.randint(1, PHONES + 1, (rows, most), generator=generator),
            "target_lengths": phones,
        }


def typical_lengths(batch: int, batches: int) -> list[list[int]]:
    """Batches of similar lengths like those of the paper's corpus: 800 on average, up to 2,400.

    The lengths of the corpus are spread as the square of an even spread, from 0 to 2,400.
    """
    places = (np.arange(batch * batches) + 0.5) / (batch * batches)
    lengths = np.maximum(LONGEST * places**2, FRAMES_PER_PHONE).round().astype(int)
    return [of.tolist() for of in lengths.reshape(batches, batch)]


@dataclass
class Cost:
    """What updates of one model on one batch cost, or the reason why they are impossible."""

    seconds: list[float] = field(default_factory=list)
    bytes: float = 0.0
    failure: str | None = None


class Worker:
    """A process that makes updates of one model."""

    def __init__(self, recipe: Recipe, threads: int) -> None:
        self.recipe, self.threads = recipe, threads
        self._pool = self._started()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()

    def measure(self, lengths: Sequence[int], cost: Cost) -> None:
        """Adds a round to `cost`: the seconds of an update, in the first round its memory."""
        if cost.failure is not None:
            return
        first = not cost.seconds
        try:
            done = self._pool.submit(updated, self.recipe, tuple(lengths), self.threads, first)
            seconds, size = done.result()
        except BrokenProcessPool:
            cost.failure = "its process was killed, as for lack of memory"
            self._pool = self._started()
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            cost.failure = "it did not fit into memory"
        else:
            cost.seconds.append(seconds)
            cost.bytes = max(cost.bytes, size)

    def _started(self) -> ProcessPoolExecutor:
        # Spawned, not forked: a child forked after OpenMP ran would hang. Ctrl-C is the parent's.
        ignore: dict[str, Any] = {
            "initializer": signal.signal,
            "initargs": (signal.SIGINT, signal.SIG_IGN),
        }
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **ignore)


def costs(
    workers: Sequence[Worker], lengths: Sequence[int], rounds: int, progress: Any
) -> list[Cost]:
    """For each worker, the cost of a batch; within a round the workers take turns."""
    result = [Cost() for _ in workers]
    for _ in range(rounds):
        for worker, cost in zip(workers, result, strict=True):
            worker.measure(lengths, cost)
            progress.update()
    return result


def updated(
    recipe: Recipe, lengths: tuple[int, ...], threads: int, first: bool
) -> tuple[float, float]:
    """Seconds of an update, and with `first` its memory, measured during a warm-up."""
    torch.set_num_threads(threads)
    updater, noise = _updater(recipe)
    noise.lengths = torch.tensor(lengths)
    device, size = updater.accelerator.device, 0.0
    if first:
        _, size = peak_memory(device, lambda: updater.update(0))
    readings = clock(device)
    readings.read()
    updater.update(0)
    readings.read()
    return readings.seconds()[0], size


@functools.cache
def _updater(recipe: Recipe) -> tuple[Updater, Noise]:
    config = recipe.training.config()
    model, noise = build_model(recipe, PHONES).train(), Noise([2 * FRAMES_PER_PHONE])
    updater = Updater(make_accelerator(config), model, noise, recognizer_loss, config, noise)
    updater.update(0)  # allocates what the optimizer keeps
    return updater, noise


def feature_speed(seconds: float = 60.0) -> float:
    """Seconds of audio whose frames one core computes in a second; the best of three."""
    generator = np.random.default_rng(0)
    samples = generator.uniform(-1, 1, round(RATE * seconds)).astype(np.float32)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        filterbank(samples)
        times.append(time.perf_counter() - begin)
    return seconds / min(times)


def where_it_runs() -> dict[str, object]:
    """Versions, device and threads."""
    return environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
