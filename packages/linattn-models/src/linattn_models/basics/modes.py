"""Training and evaluation mode of a model for some lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def preserve_modes(model: nn.Module) -> Iterator[None]:
    """After the block, each module of the model is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in evaluation mode; afterwards each module is as it was."""
    with preserve_modes(model):
        model.eval()
        yield
