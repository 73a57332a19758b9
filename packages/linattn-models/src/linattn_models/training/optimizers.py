"""Optimizers by name, and their state as named tensors, which need no pickle to be kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from linattn_models.training.config import TrainingConfig

_CLASSES: dict[str, type[torch.optim.RAdam] | type[torch.optim.Adam] | type[torch.optim.AdamW]] = {
    "radam": torch.optim.RAdam,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name, in the order the optimizer holds them.

    Raises:
        ValueError: if there is none.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError(
            "training needs a model with a parameter that requires a gradient, got none"
        )
    return parameters


def build_optimizer(
    config: TrainingConfig, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer that `config` names, over `parameters` in their order."""
    optimizer_class = _CLASSES[config.optimizer]
    return optimizer_class(
        parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay
    )


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """The optimizer's state, each tensor as "<parameter>/<entry>": "layers.0.weight/exp_avg"."""
    return {
        f"{name}/{entry}": torch.as_tensor(value)
        for name, parameter in parameters.items()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
    source: object,
) -> None:
    """Puts back what `optimizer_tensors` returned; rate and decay stay those of `optimizer`.

    Raises:
        ValueError: if a tensor belongs to no parameter or has another shape than its parameter.
    """
    positions = {name: position for position, name in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in positions:
            raise ValueError(f"{source} holds {key!r}, for which the model has no parameter")
        expected = parameters[name].shape
        if tensor.dim() and tensor.shape != expected:
            raise ValueError(
                f"{source} holds {key!r} of shape {tuple(tensor.shape)}, "
                f"the model's parameter has {tuple(expected)}"
            )
        state.setdefault(positions[name], {})[entry] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
