"""The matrices of saved models in fewer bits: bfloat16 or int8."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.weights.tied import TiedLinear

FEWER_BITS = ("bfloat16", "int8")
_LEVELS = 127
_LARGEST = ".largest"  # beside a matrix of int8: (outputs,), the largest weight of each output


def reduce_bits(model: nn.Module, tensors: Mapping[str, Tensor], weights: str) -> dict[str, Tensor]:
    """The state dict with the matrices of all linear layers in fewer bits.

    The matrix of a tied layer is that of its embedding, which is rounded with it.

    Args:
        model: its modules say which tensors are matrices of linear layers.
        tensors: its state dict, in float32.
        weights: "bfloat16" or "int8"; see `compile_decoder`.
    """
    tensors = {name: x.detach() for name, x in tensors.items()}
    for name in _matrices(model):
        tensors |= round_matrix(name, tensors[name], weights)
    return tensors


def round_matrix(name: str, matrix: Tensor, weights: str) -> dict[str, Tensor]:
    """A matrix (outputs, inputs) of float32 as it is stored, by names from which it is restored."""
    if matrix.dtype != torch.float32:
        advice = "convert the model by .float()"
        raise TypeError(expected(name, "float32 to round", matrix.dtype, advice))
    if weights == "bfloat16":
        return {name: matrix.bfloat16()}
    if weights == "int8":
        levels, largest = _levels(matrix)
        return {name: levels, name + _LARGEST: largest}
    return {name: matrix}


def _matrices(model: nn.Module) -> list[str]:
    """The names of the matrices of all linear layers, each once."""
    names = {layer: f"{name}.weight" if name else "weight" for name, layer in model.named_modules()}
    linear = [layer for layer in names if isinstance(layer, nn.Linear)]
    tied = [layer.table for layer in names if isinstance(layer, TiedLinear)]
    return [names[layer] for layer in (*linear, *tied)]


def restore_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 state dict of what `reduce_bits` returned."""
    wide = {name: x for name, x in tensors.items() if not name.endswith(_LARGEST)}
    for name, x in wide.items():
        if x.dtype == torch.int8:
            largest = tensors[name + _LARGEST]
            if largest.shape != x.shape[:1]:
                raise LookupError(f"{name + _LARGEST} has shape {tuple(largest.shape)}")
            wide[name] = _weights(x, largest)
        elif x.dtype == torch.bfloat16:
            wide[name] = x.float()
    return wide


def _levels(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (outputs, inputs) as integers in -127..127, and each output's largest weight."""
    largest = matrix.abs().amax(1)
    # A number divided by a tensor would be rounded twice, because torch multiplies by reciprocals.
    inverse = torch.where(largest > 0, torch.full_like(largest, _LEVELS) / largest, 0.0)
    # In float64 the product is exact, as in the fused multiply-add of the kernels.
    levels = (matrix.double() * inverse.double()[:, None]).round().clamp(-_LEVELS, _LEVELS)
    return levels.nan_to_num(0.0).to(torch.int8), largest


def _weights(levels: Tensor, largest: Tensor) -> Tensor:
    """The inverse of `_levels`: rounded again, the result gives the same levels."""
    weights = levels * (largest / _LEVELS)[:, None]
    return torch.where(levels.abs() == _LEVELS, levels.sign() * largest[:, None], weights)
