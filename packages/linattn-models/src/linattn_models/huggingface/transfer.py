"""Attention transfer: the new weights of converted layers learn from the softmax they replace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.basics.modes import evaluating
from linattn_models.basics.validation import in_range, instance
from linattn_models.huggingface.converted import ConvertedAttention

_SCALE = 2.0**10  # of the error, so that its gradients in float16 are not rounded to 0


def transfer_attention(
    model: nn.Module,
    batches: Iterable[Tensor | Mapping[str, Tensor]],
    *,
    learning_rate: float = 1e-2,
) -> list[float]:
    """Trains the weights that `convert` added to a model, each layer against its own softmax.

    Each layer gets the inputs that it has in the softmax model, and computes both kinds of
    attention from the same queries, keys and values. Adam minimizes

        error = sum (converted - softmax)^2 / sum softmax^2

    over the outputs of the heads. The model's other weights stay. During the training dropout is
    off; afterwards training modes and `requires_grad` are as before. Of weights in 16 bits, Adam
    updates copies in float32, because rounding would lose its updates.

    Args:
        model: a model from `convert`.
        batches: one for each step: input_ids (B, N), or the model's inputs by name.
        learning_rate: of Adam.

    Returns:
        For each step the mean error of the layers, before the update.

    Raises:
        ValueError, TypeError: a model that was not converted; no batches, or one that is neither a
            tensor (B, N) nor a mapping, or no longer than the window; a learning rate below 0;
            an error that is not finite, before the weights change.

    Cost per step: a forward pass of the model without its head, O(N^2) time per layer for softmax,
    and the backward pass of the feature maps.
    """
    instance("model", model, nn.Module)
    layers = [module for module in model.modules() if isinstance(module, ConvertedAttention)]
    if not layers or not layers[0].learned:
        got, wanted = f"a {type(model).__name__} without any", "converted layers with learned maps"
        raise ValueError(expected("transfer_attention", wanted, got, "convert it"))
    instance("batches", batches, Iterable)
    in_range("learning_rate", learning_rate, 0.0, math.inf)
    weights = [weight for layer in layers for weight in layer.new_parameters()]
    precise = [_as_precise(weight) for weight in weights]
    optimizer = torch.optim.Adam(precise, learning_rate)
    errors: list[float] = []
    with _training_only(model, weights), _teaching(layers), torch.enable_grad():
        for batch in batches:
            cast(Any, model).base_model(**_inputs(batch))
            error = torch.stack([cast(Tensor, layer.error) for layer in layers]).mean()
            _check_longer_than_the_window(error, layers[0].window_size)
            _check_finite(error, step=len(errors) + 1)
            gradients = torch.autograd.grad(error * _SCALE, weights, allow_unused=True)
            for copy, gradient in zip(precise, gradients, strict=True):
                copy.grad = None if gradient is None else gradient.to(copy.dtype) / _SCALE
            optimizer.step()
            with torch.no_grad():
                for weight, copy in zip(weights, precise, strict=True):
                    weight.copy_(copy)
            errors.append(error.item())
    if not errors:
        raise ValueError(expected("batches", "one for each step", "none"))
    return errors


def _as_precise(weight: nn.Parameter) -> Tensor:
    """The weight, or a copy in float32 if it has fewer bits."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def _check_finite(error: Tensor, step: int) -> None:
    if not error.isfinite():
        advice = "try a smaller learning_rate, or convert the model in float32"
        raise ValueError(expected(f"the error of step {step}", "a number", error.item(), advice))


def _check_longer_than_the_window(error: Tensor, size: int) -> None:
    """Refuses a batch whose tokens are all in the window, so that there is nothing to learn."""
    if not error.requires_grad:
        advice = "pass longer sequences, or convert with a smaller window_size"
        wanted = f"more tokens than window_size={size}"
        raise ValueError(expected("a batch", wanted, f"{size} or fewer", advice))


def _inputs(batch: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The arguments of the model."""
    if isinstance(batch, Mapping):
        return batch
    instance("a batch", batch, Tensor, Mapping)
    if batch.ndim != 2:
        wanted = "input_ids (B, N), or the model's inputs by name"
        raise ValueError(expected("a batch", wanted, f"shape {tuple(batch.shape)}"))
    return {"input_ids": batch}


@contextmanager
def _training_only(model: nn.Module, weights: list[nn.Parameter]) -> Iterator[None]:
    """Inside the `with` block, only these weights need gradients, and dropout is off."""
    flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        for weight in weights:
            weight.requires_grad_(True)
        with evaluating(model):
            yield
    finally:
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
