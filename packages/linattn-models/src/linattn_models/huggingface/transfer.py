"""Attention transfer: the feature maps of converted layers learn from the softmax they replace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.huggingface.converted import ConvertedAttention


def transfer_attention(
    model: nn.Module,
    batches: Iterable[Tensor | Mapping[str, Tensor]],
    *,
    learning_rate: float = 1e-2,
) -> list[float]:
    """Trains the feature maps of a converted model, each layer against its own softmax.

    Each layer gets the inputs that it has in the softmax model, and computes both kinds of
    attention from the same queries, keys and values. Adam minimizes

        error = sum (linear - softmax)^2 / sum softmax^2

    over the outputs of the heads. No other weights change. During the training dropout is off;
    afterwards training modes and `requires_grad` are as before.

    Args:
        model: a model from `convert`.
        batches: one for each step: input_ids (B, N), or the model's inputs by name.
        learning_rate: of Adam.

    Returns:
        For each step the mean error of the layers, before the update.

    Raises:
        ValueError: a model that was not converted.

    Cost per step: a forward pass of the model without its head, O(N^2) time per layer for softmax,
    and the backward pass of the feature maps.
    """
    layers = [module for module in model.modules() if isinstance(module, ConvertedAttention)]
    if not layers:
        got = f"a {type(model).__name__} without any"
        raise ValueError(expected("transfer_attention", "converted layers", got, "convert it"))
    maps = [weight for layer in layers for weight in layer.feature_map.parameters()]
    optimizer = torch.optim.Adam(maps, learning_rate)
    errors = []
    with _training_only(model, maps), _teaching(layers), torch.enable_grad():
        for batch in batches:
            inputs = {"input_ids": batch} if isinstance(batch, Tensor) else batch
            cast(Any, model).base_model(**inputs)
            error = torch.stack([cast(Tensor, layer.error) for layer in layers]).mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            errors.append(error.item())
    return errors


@contextmanager
def _training_only(model: nn.Module, weights: list[nn.Parameter]) -> Iterator[None]:
    """Inside the `with` block, only these weights need gradients, and dropout is off."""
    flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
    training = {module: module.training for module in model.modules()}
    model.eval().requires_grad_(False)
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for parameter, flag in flags.items():
            parameter.requires_grad_(flag)


@contextmanager
def _teaching(layers: list[ConvertedAttention]) -> Iterator[None]:
    """Inside the `with` block, layers return softmax attention and set their `error`."""
    try:
        for layer in layers:
            layer.teaching = True
        yield
    finally:
        for layer in layers:
            layer.teaching, layer.error = False, None
