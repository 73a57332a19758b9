"""The data of a run, the order of its examples, and its random numbers; a seed decides both."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from linattn_core.errors import expected


class TrainingData(Protocol):
    """A set of examples with a length and access by index."""

    def __len__(self) -> int:
        """The number of examples."""

    def batch(self, indices: Tensor) -> Any:
        """The examples at `indices` (batch,) int64: a tensor or a dict of tensors, on the CPU."""


class Order(Protocol):
    """Which examples each update uses: a function of the step alone, so that resuming is exact."""

    def indices(self, step: int) -> Tensor:
        """The examples of the update that follows `step` others: (batch,) int64."""


class TensorData:
    """The rows of a tensor as examples.

    Args:
        examples: (examples, ...), on the CPU.
    """

    def __init__(self, examples: Tensor) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, indices: Tensor) -> Tensor:
        """The rows at `indices`, a copy."""
        return self.examples[indices]


class ExampleOrder:
    """Endless epochs, each a permutation of all examples; a batch may span two epochs.

    Permutation e is drawn with a seed from (seed, e), so batch n depends on n alone, and resuming
    needs no other position in the data than the step.

    Args:
        examples: the number of examples.
        batch_size: the number of examples of an update.
        seed: the seed of the run.

    Raises:
        ValueError: if there is no example.
    """

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        if examples < 1:
            raise ValueError(expected("data", "at least 1 example", examples))
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, step: int) -> Tensor:
        """The examples of the update that follows `step` others: (batch_size,) int64."""
        position = step * self.batch_size
        remaining = self.batch_size
        pieces = []
        while remaining:
            epoch, start = divmod(position, self.examples)
            piece = self._epoch_permutation(epoch)[start : start + remaining]
            pieces.append(piece)
            position += len(piece)
            remaining -= len(piece)
        return torch.cat(pieces)

    def _epoch_permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derived_seed("order", self.seed, epoch))
            self._permutation = torch.randperm(self.examples, generator=generator)
            self._epoch = epoch
        return self._permutation


def derived_seed(purpose: str, *numbers: int) -> int:
    """A 32-bit seed that differs wherever the purpose or any of the numbers does."""
    text = " ".join([purpose, *map(str, numbers)])
    # 32 bits, because the generators of torch on a CPU and of numpy use no more of a seed.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def seed_all(seed: int, step: int, process: int) -> None:
    """Seeds torch (every device), Python and numpy from the run's seed, a step and a process."""
    mixed = derived_seed("draws", seed, step, process)
    torch.manual_seed(mixed)
    random.seed(mixed)
    numpy.random.seed(mixed)


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators of torch's CPU and `device`, of Python and of numpy, each 1-D."""
    _, words, gauss = random.getstate()
    state = numpy.random.get_state(legacy=False)
    keys, position = state["state"]["key"].tolist(), state["state"]["pos"]
    second = _bits_of_float(state["gauss"])
    tensors = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([*words, int(gauss is not None), _bits_of_float(gauss or 0.0)]),
        "numpy": torch.tensor([*keys, position, state["has_gauss"], second]),
    }
    if device.type != "cpu":
        tensors["device"] = torch.get_device_module(device).get_rng_state()
    return tensors


def set_random_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Puts back what `random_tensors` returned."""
    torch.set_rng_state(tensors["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(tensors["device"])
    *words, has_gauss, gauss = tensors["python"].tolist()
    random.setstate((3, tuple(words), _float_from_bits(gauss) if has_gauss else None))
    *keys, position, has_gauss, gauss = tensors["numpy"].tolist()
    state = numpy.array(keys, dtype=numpy.uint32)
    numpy.random.set_state(("MT19937", state, position, has_gauss, _float_from_bits(gauss)))


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Restores the random generators after the body."""
    tensors = random_tensors(device)
    try:
        yield
    finally:
        set_random_tensors(tensors, device)


def _bits_of_float(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float_from_bits(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
