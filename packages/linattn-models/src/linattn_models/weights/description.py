"""The weights of layers for a compiled decoder; refuses layers that compute anything else."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from linattn_core.decoder_spec import Affine, CannotCompile, Norm
from linattn_core.errors import expected
from linattn_models.basics.validation import name_of
from linattn_models.weights.hooks import has_hooks
from linattn_models.weights.tied import TiedLinear


def require(module: nn.Module, kind: type[nn.Module]) -> None:
    """Refuses a module of another class, or one with hooks or a replaced forward."""
    if type(module) is not kind:
        name = f"{type(module).__module__}.{type(module).__name__}"
        advice = "a compiled decoder does not know its arithmetic, so decode eagerly"
        raise CannotCompile(expected("a layer", name_of(kind), name, advice))
    if not is_plain(module, kind):
        wanted, got = "no hooks and the forward of its class", "hooks or a forward of its own"
        advice = "a compiled decoder would not run them, so remove them or decode eagerly"
        raise CannotCompile(expected(name_of(kind), wanted, got, advice))


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the module runs the forward of `kind`, and no forward hooks."""
    return type(module) is kind and not has_hooks(module) and "forward" not in module.__dict__


def embedding(table: nn.Module) -> Tensor:
    """The weight of an `nn.Embedding` that only looks up rows (without `max_norm`)."""
    require(table, nn.Embedding)
    layer = cast(nn.Embedding, table)
    if layer.max_norm is not None:
        advice = "looking a row up changes the weights, so decode eagerly"
        raise CannotCompile(expected("an embedding", "no max_norm", layer.max_norm, advice))
    return numbers(layer.weight, "an embedding")


def numbers(tensor: Tensor | None, what: str) -> Tensor:
    """A plain float32 tensor, detached, on the CPU, a CUDA GPU or "meta", which has sizes alone."""
    if tensor is None or type(tensor) not in (Tensor, nn.Parameter):
        raise CannotCompile(expected(what, "a plain tensor", type(tensor), "decode eagerly"))
    if tensor.dtype != torch.float32 or tensor.device.type not in ("cpu", "cuda", "meta"):
        got = f"{tensor.dtype} on {tensor.device}"
        advice = "move the model by .float() and .to(), and save it so, or decode eagerly"
        raise CannotCompile(expected(what, "float32 on the CPU or a CUDA GPU", got, advice))
    return tensor.detach()


def optional(tensor: Tensor | None, what: str) -> Tensor | None:
    """As `numbers`; None for None."""
    return None if tensor is None else numbers(tensor, what)


def affine(layer: nn.Module) -> Affine:
    """A linear layer as weight (inputs, outputs), a transposed view, and bias or None."""
    require(layer, TiedLinear if isinstance(layer, TiedLinear) else nn.Linear)
    linear = cast(nn.Linear, layer)
    weight = numbers(linear.weight, "a layer's weight")
    return Affine(weight.t(), optional(linear.bias, "a layer's bias"))


def norm(layer: nn.Module) -> Norm:
    """An `nn.LayerNorm` or an `nn.RMSNorm` with an eps of its own."""
    centered = not isinstance(layer, nn.RMSNorm)
    require(layer, nn.LayerNorm if centered else nn.RMSNorm)
    norm = cast(nn.LayerNorm, layer)
    bias = optional(norm.bias if centered else None, "a norm's bias")
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return Norm(numbers(norm.weight, "a norm's weight"), bias, eps, centered)
