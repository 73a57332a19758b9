"""Forward hooks, which torch runs when a module is called, and at no other time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from linattn_core.errors import expected


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module runs hooks too, its own or those on all modules.

    torch has no public way to ask; `test_refuses_models_that_it_does_not_know` and
    `test_hooks_on_all_modules_are_hooks_too` fail where these names change.
    """
    return bool(
        _own_hooks(module)
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )


def refuse_hooks(modules: Iterable[nn.Module], advice: str) -> None:
    """Refuses forward hooks on modules of which a step calls other methods than `forward`."""
    if torch.compiler.is_compiling():
        return
    for module in modules:
        # Most modules have none, and each step asks all of them.
        hooked = module._forward_hooks or module._forward_pre_hooks
        if hooked and not all(map(_gathers_weights, _own_hooks(module))):
            wanted, got = "no forward hook: a step would not run it", "one"
            raise ValueError(expected(f"a {type(module).__name__}", wanted, got, advice))


def _own_hooks(module: nn.Module) -> tuple[Callable[..., Any], ...]:
    return (*module._forward_hooks.values(), *module._forward_pre_hooks.values())


def _gathers_weights(hook: Callable[..., Any]) -> bool:
    """Whether `fully_shard` registered the hook; it does nothing where weights are whole."""
    return getattr(hook, "__module__", "").startswith("torch.distributed.")
