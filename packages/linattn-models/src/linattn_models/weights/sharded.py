"""Models whose weights are divided among ranks: how they are read, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn

from linattn_core.errors import expected

# The weights that `TensorParallel` divides the projections of a layer into.
PARTS = ("query", "key", "value")

_Method = TypeVar("_Method", bound=Callable[..., Any])


def own_class(model: object) -> type:
    """The class of a model, without the one that `fully_shard` puts before it."""

    def is_sharded(kind: type) -> bool:
        return any(base.__module__.startswith("torch.distributed.") for base in kind.__mro__)

    return next(kind for kind in type(model).__mro__ if not is_sharded(kind))


def are_sharded(tensors: Iterable[object]) -> bool:
    """Whether one of them is divided among ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(x, DTensor) for x in tensors)


def gather_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The whole state dict, on the CPU of rank 0; an empty one on the others.

    All ranks must call it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    tensors = cast(dict[str, Tensor], get_model_state_dict(model, options=options))
    for first in [name for name in tensors if f".qkv.{PARTS[0]}." in name]:
        before, _, kind = first.rpartition(f"{PARTS[0]}.")
        tensors[before + kind] = torch.cat([tensors.pop(f"{before}{x}.{kind}") for x in PARTS])
    return tensors


def require_whole(model: object) -> None:
    """Refuses sharded weights: only a module's `forward` gathers them, no step."""
    if not isinstance(model, nn.Module) or not are_sharded(model.parameters()):
        return
    from torch.distributed.fsdp import FSDPModule

    if any(isinstance(x, FSDPModule) and are_sharded(x.parameters()) for x in model.modules()):
        got = "a model that fully_shard has divided among ranks"
        advice = "call unshard() of each FSDPModule in it"
        advice += ", or generate with method='rerun'" if hasattr(model, "generate") else ""
        raise ValueError(expected("model", "whole weights to step with", got, advice))


def needs_whole(method: _Method) -> _Method:
    """A method of a module that says so where it fails because the weights are sharded."""

    @wraps(method)
    def explain(self: nn.Module, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except RuntimeError:
            require_whole(self)
            raise

    return cast(_Method, explain)
