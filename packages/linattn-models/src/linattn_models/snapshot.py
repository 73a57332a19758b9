"""Whether a module is still as it was: at the cost of a read of its weights, or of no read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from linattn_core import choice
from linattn_core.autocast import without_autocast
from linattn_core.torch_private import version_of


class Source:
    """What something was made from: tensors and settings. Equal to another one of the same.

    Writes through `.data` or into a NumPy view do not change a tensor's version, but its checksums.

    Args:
        tensors: the weights, which are read once.
        settings: all else on which it depends, also the tensors' places and versions, which change
            where rounding hides a change from the checksums.
    """

    def __init__(self, tensors: Iterable[Tensor], *settings: object) -> None:
        self._settings = settings
        self._checksums = _compute_checksums(tensors)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Source)
            and self._settings == other._settings
            and torch.equal(self._checksums, other._checksums)
        )


class Snapshot:
    """The modules, tensors and hooks that a module has, and the backend that is chosen.

    Comparing takes some tens of microseconds, because no weight is read. A snapshot keeps all of it
    alive, so that no new tensor can get the same address and look unchanged. It sees writes that
    advance a tensor's version: those of optimizers and of `load_state_dict`, not those through
    `.data` or into a NumPy view. Settings of modules, such as an eps, are not compared.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.modules())
        self._attributes = [owner.__dict__ for owner in modules]
        self._hooks = [x for own in modules for x in (own._forward_hooks, own._forward_pre_hooks)]
        self._places: list[tuple[dict[str, Any], str, object]] = [
            (held, name, x)
            for owner in modules
            for held in (owner._modules, owner._parameters, owner._buffers)
            for name, x in held.items()
        ]
        self._tensors = [x for _, _, x in self._places if isinstance(x, Tensor)]
        self._before = self._read()

    def holds(self) -> bool:
        """Whether all of it is unchanged."""
        for held, name, x in self._places:
            if held.get(name) is not x:
                return False
        return self._read() == self._before

    def _read(self) -> tuple[object, ...]:
        """What changes with the backend, with hooks, and with the values of the tensors."""
        hooks = sum(map(len, self._hooks))
        replaced = ["forward" in own for own in self._attributes]
        values = [(x.data_ptr(), version_of(x)) for x in self._tensors]
        return choice.current, hooks, replaced, values


@torch.no_grad()
def _compute_checksums(tensors: Iterable[Tensor]) -> Tensor:
    """A number for each row of each tensor, in which every place has a factor of its own.

    Exchanging columns changes the numbers; exchanging rows changes their order. As bits, NaN equals
    NaN.
    """
    sums = []
    for x in map(torch.atleast_1d, tensors):
        if x.numel():
            with without_autocast(x.device.type):
                factors = _factors(x.shape[-1], x.device)
                sums.append(x.reshape(-1, x.shape[-1]).float() @ factors)
    return torch.cat(sums).view(torch.int32)


@lru_cache(maxsize=64)
def _factors(width: int, device: torch.device) -> Tensor:
    """(width,) numbers in [0.5, 1.5): fractional parts of the multiples of an irrational number."""
    places = torch.arange(1, width + 1, dtype=torch.float64, device=device)
    return (places * (math.sqrt(5) / 2)).frac().float() + 0.5
