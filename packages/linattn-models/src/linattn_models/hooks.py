"""Forward hooks, which torch runs when a module is called, and at no other time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from linattn_core.errors import expected


def refuse_hooks(modules: Iterable[nn.Module], advice: str) -> None:
    """Refuses forward hooks on modules of which a step calls other methods than `forward`."""
    if torch.compiler.is_compiling():
        return
    for module in modules:
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if hooks and not all(map(_gathers_weights, hooks)):
            wanted, got = "no forward hook: a step would not run it", "one"
            raise ValueError(expected(f"a {type(module).__name__}", wanted, got, advice))


def _gathers_weights(hook: Callable[..., Any]) -> bool:
    """Whether `fully_shard` registered the hook; it does nothing where weights are whole."""
    return getattr(hook, "__module__", "").startswith("torch.distributed.")
