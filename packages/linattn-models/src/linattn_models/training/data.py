"""The data of a run and the order of its examples, which the seed decides."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from linattn_models.basics.validation import at_least
from linattn_models.training.random_state import derive_seed


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

    Permutation e is drawn with a seed from (seed, e), so batch n depends on n alone.
    """

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self.examples = at_least("data", examples, 1)
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, step: int) -> Tensor:
        """The examples of the update that follows `step` others: (batch_size,) int64."""
        # Allocated first: a batch that no memory can hold fails at once.
        batch, filled = torch.empty(self.batch_size, dtype=torch.int64), 0
        while filled < self.batch_size:
            epoch, start = divmod(step * self.batch_size + filled, self.examples)
            piece = self._permute(epoch)[start : start + self.batch_size - filled]
            batch[filled : filled + len(piece)] = piece
            filled += len(piece)
        return batch

    def _permute(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed("order", self.seed, epoch))
            self._permutation = torch.randperm(self.examples, generator=generator)
            self._epoch = epoch
        return self._permutation
