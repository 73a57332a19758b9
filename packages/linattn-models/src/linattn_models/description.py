"""Layers as a compiled decoder takes them: their weights, provided that they do nothing else."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from linattn_core.decoding import Affine, CannotCompile, Norm


def require(module: nn.Module, kind: type[nn.Module]) -> None:
    """Refuses a module of another class, or one whose call runs more than its class says.

    Raises:
        CannotCompile: with the class that was found, or that hooks were.
    """
    if type(module) is not kind:
        raise CannotCompile(
            f"a {kind.__name__} was expected and a {type(module).__module__}."
            f"{type(module).__name__} is in its place, whose arithmetic a compiled decoder does "
            "not know."
        )
    if _hooked(module) or "forward" in vars(module):
        raise CannotCompile(
            f"a {kind.__name__} has hooks or a forward of its own, which a compiled decoder would "
            "not run."
        )


def embedding(table: nn.Module) -> Tensor:
    """The weight of an `nn.Embedding` that is nothing but a table."""
    require(table, nn.Embedding)
    found = cast(nn.Embedding, table)
    if found.max_norm is not None:
        raise CannotCompile(
            f"an embedding has max_norm={found.max_norm}, by which looking up changes its weights."
        )
    return numbers(found.weight, "an embedding")


def numbers(tensor: Tensor | None, what: str) -> Tensor:
    """A plain float32 tensor on the CPU or a CUDA GPU.

    Raises:
        CannotCompile: absent, of another dtype, device or kind of tensor.
    """
    if tensor is None or type(tensor) not in (Tensor, nn.Parameter):
        raise CannotCompile(f"{what} was expected to be a plain tensor and is {type(tensor)}.")
    if tensor.dtype != torch.float32 or tensor.device.type not in ("cpu", "cuda"):
        raise CannotCompile(
            f"{what} was expected in float32 on the CPU or a CUDA GPU and is {tensor.dtype} on "
            f"{tensor.device}; move the model by .float() and .to(), or decode eagerly."
        )
    return tensor.detach()


def affine(layer: nn.Module) -> Affine:
    """An `nn.Linear` as (inputs, outputs) and bias."""
    require(layer, nn.Linear)
    weight = numbers(cast(Any, layer).weight, "a layer's weight")
    bias = numbers(cast(Any, layer).bias, "a layer's bias")
    return Affine(weight.t(), bias)


def norm(layer: nn.Module) -> Norm:
    """An `nn.LayerNorm`."""
    require(layer, nn.LayerNorm)
    found = cast(nn.LayerNorm, layer)
    return Norm(
        numbers(found.weight, "a norm's weight"), numbers(found.bias, "a norm's bias"), found.eps
    )


def _hooked(module: Any) -> bool:
    """Whether calling the module runs hooks too."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )
