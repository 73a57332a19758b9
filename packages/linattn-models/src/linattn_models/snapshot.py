"""Whether a module is still as it was, at the cost of some tens of microseconds."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from linattn_core import choice
from linattn_core.torch_private import version_of


class Snapshot:
    """The modules, tensors and hooks that a module has, and the backend that is chosen.

    It keeps them alive, so that no new tensor can get the same address and look unchanged. It sees
    writes that advance a tensor's version: those of optimizers and of `load_state_dict`, not those
    through `.data` or into a NumPy view. Settings of modules, such as an eps, are not compared.
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
