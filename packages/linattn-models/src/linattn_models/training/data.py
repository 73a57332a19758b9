"""The order in which a run sees its examples: a function of the seed and the step alone."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import torch
from torch import Tensor

from linattn_core.errors import expected


class TrainingData(Protocol):
    """A set of examples that can be counted and picked from."""

    def __len__(self) -> int:
        """The number of examples."""

    def batch(self, indices: Tensor) -> Any:
        """The examples at `indices` (batch,) int64: a tensor or a dict of tensors, on the CPU."""


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
    """Endless epochs, each a permutation of all examples, cut into batches that may straddle two.

    Permutation e is drawn from a generator seeded by (seed, e), so batch n of any run is found
    without walking through the batches before it: the position in the data is the step.

    Args:
        examples: how many examples there are.
        batch_size: how many of them a step takes.
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
    # 32 bits: torch's CPU generator and numpy's take no more of a seed.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
