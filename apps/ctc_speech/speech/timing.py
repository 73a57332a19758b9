"""What an update costs, on frames of noise: seconds and memory, each model in a process of its own.

The processes take turns, so that other load on the machine falls on all of them, and one that
crashes or is killed takes no other with it.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pydantic
import torch
from torch import Tensor

from linattn_lab.memory import peak_memory
from linattn_lab.timing import NotMeasured, clock, stopwatch
from linattn_models.memory import lacks_memory
from linattn_models.training import Updater, make_accelerator
from speech.audio import RATE
from speech.batches import Batch, BatchCycle
from speech.features import BINS, filterbank
from speech.models import build_model
from speech.presets import Attention, Recipe
from speech.training import recognizer_loss

PHONES = 72
FRAMES_PER_PHONE = 12  # frames come every 10 ms
LONGEST = 2_400


class Cost(pydantic.BaseModel):
    """What an update of a model costs.

    Attributes:
        lengths: the frames of each utterance of the batch.
        seconds: one for each round; none if updates are impossible.
        bytes: by which the memory in use rises.
        failure: why updates are impossible.
    """

    attention: Attention
    lengths: list[int]
    seconds: list[float] = []
    bytes: float = 0.0
    failure: str | None = None

    @property
    def median(self) -> float | None:
        """Seconds of an update, if updates are possible."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def gigabytes(self) -> float | None:
        """Memory of an update, if updates are possible."""
        return self.bytes / 1e9 if self.seconds else None


class Noise:
    """Training data whose examples are numbers of frames: an utterance of noise for each."""

    def __len__(self) -> int:
        return LONGEST

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


def make_typical_lengths(batch: int, batches: int) -> list[list[int]]:
    """Batches of similar lengths like those of the paper's corpus: 800 on average, up to 2,400.

    The lengths of the corpus are spread as the square of an even spread, from 0 to 2,400.
    """
    places = (np.arange(batch * batches) + 0.5) / (batch * batches)
    lengths = np.maximum(LONGEST * places**2, FRAMES_PER_PHONE).round().astype(int)
    return [of.tolist() for of in lengths.reshape(batches, batch)]


class Worker:
    """A process that makes updates of one model."""

    def __init__(self, recipe: Recipe, threads: int) -> None:
        self.recipe, self.threads = recipe, threads
        self._pool = _start_process(threads)

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown()

    def run(self, measure: Callable[[Recipe, list[int]], float], lengths: list[int]) -> float:
        """What `measure` returns in the process, for the model on a batch.

        Raises:
            NotMeasured: the batch does not fit into memory.
        """
        try:
            return self._pool.submit(measure, self.recipe, lengths).result()
        except BrokenProcessPool:
            self._pool = _start_process(self.threads)
            raise NotMeasured("its process was killed, as for lack of memory") from None
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            raise NotMeasured("it did not fit into memory") from None


def measure_costs(
    workers: Mapping[Attention, Worker], lengths: list[int], rounds: int
) -> list[Cost]:
    """What an update of each model on a batch costs; the models take turns."""
    costs = {name: Cost(attention=name, lengths=lengths) for name in workers}
    for turn in range(1 + rounds):
        for name in [x for x, cost in costs.items() if cost.failure is None]:
            try:
                if turn == 0:
                    costs[name].bytes = workers[name].run(measure_bytes, lengths)
                else:
                    costs[name].seconds.append(workers[name].run(measure_seconds, lengths))
            except NotMeasured as reason:
                costs[name].failure = str(reason)
                costs[name].seconds.clear()
    return list(costs.values())


def measure_bytes(recipe: Recipe, lengths: list[int]) -> float:
    """The bytes by which memory rises during an update, which also warms up."""
    updater = _updater(recipe, lengths)
    return peak_memory(updater.accelerator.device, lambda: updater.update(0))[1]


def measure_seconds(recipe: Recipe, lengths: list[int]) -> float:
    """The seconds of an update."""
    updater = _updater(recipe, lengths)
    readings = clock(updater.accelerator.device)
    readings.read()
    updater.update(0)
    readings.read()
    return readings.seconds()[0]


def measure_feature_speed(seconds: float = 60.0) -> float:
    """Seconds of audio whose frames one core computes in a second; the best of three."""
    generator = np.random.default_rng(0)
    samples = generator.uniform(-1, 1, round(RATE * seconds)).astype(np.float32)
    timed = stopwatch("cpu")
    return seconds / min(timed(lambda: filterbank(samples)) for _ in range(3))


def _start_process(threads: int) -> ProcessPoolExecutor:
    # Spawned, not forked: a child forked after OpenMP ran would hang.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_prepare_process, initargs=(threads,))


def _prepare_process(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    torch.set_num_threads(threads)


def _updater(recipe: Recipe, lengths: Sequence[int]) -> Updater:
    """The updater of this process; its next updates are on noise of these lengths."""
    updater, order = _build_updater(recipe)
    order.batches = [torch.tensor(lengths)]
    return updater


@functools.cache
def _build_updater(recipe: Recipe) -> tuple[Updater, BatchCycle]:
    config = recipe.training.config()
    model = build_model(recipe, PHONES).train()
    order = BatchCycle([torch.tensor([2 * FRAMES_PER_PHONE])])
    updater = Updater(make_accelerator(config), model, Noise(), recognizer_loss, config, order)
    updater.update(0)  # allocates what the optimizer keeps
    return updater, order
