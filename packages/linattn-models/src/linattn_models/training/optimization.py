"""One update of the weights: learning rate, optimizer, and a step on one process or many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.training.config import TrainingConfig
from linattn_models.training.data import ExampleOrder, Order, TrainingData

Loss = Callable[[Any, Any], Tensor]

# Of each evaluation, the updates made before it and the error, None where it was not finite.
Errors = Sequence[tuple[int, float | None]]

_CLASSES: dict[str, type[torch.optim.RAdam] | type[torch.optim.Adam] | type[torch.optim.AdamW]] = {
    "radam": torch.optim.RAdam,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_FUSED_ON = ("cpu", "cuda")


def learning_rate(config: TrainingConfig, step: int, errors: Errors = ()) -> float:
    """The learning rate of the update made when `step` updates have been made before it.

        rate(step) = learning_rate * min(1, (step + 1) / warmup) * decay(step)

    It depends only on the step and, for the schedule plateau, on the errors measured until then, so
    that a resumed run has the same rates as one that was never stopped.

    Args:
        config: gives `learning_rate`, `schedule` and what the schedule needs.
        step: updates made so far; 0 for the first update.
        errors: for the schedule plateau, (updates made before it, error) of each evaluation.

    Returns:
        The rate, above 0 for every step below `config.steps`.
    """
    rising = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * rising * _decay(config, step, errors)


def _decay(config: TrainingConfig, step: int, errors: Errors) -> float:
    if config.schedule == "cosine":
        span = config.steps - config.warmup
        position = min(max(step - config.warmup, 0), span)
        return 0.5 * (1.0 + math.cos(math.pi * position / span))
    if config.schedule == "trapezoid":
        return min(1.0, max(0, config.steps - step) / config.cooldown)
    if config.patience is not None:
        measured = (error for after, error in errors if after <= step)
        return config.drop_factor ** _plateaus(measured, config.patience)
    if config.drop_at is not None and step >= config.drop_at:
        return config.drop_factor
    return 1.0


def _plateaus(errors: Iterable[float | None], patience: int) -> int:
    """How often `patience` errors in a row were no better than the best one before them."""
    best, waited, plateaus = math.inf, 0, 0
    for error in errors:
        if error is not None and error < best:
            best, waited = error, 0
            continue
        waited += 1
        if waited == patience:
            waited, plateaus = 0, plateaus + 1
    return plateaus


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name, in the order the optimizer holds them.

    Raises:
        ValueError: if there is none.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError(expected("model", "a parameter that requires a gradient", "none"))
    return parameters


def build_optimizer(
    config: TrainingConfig, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer that `config` names, over `parameters` in their order.

    Uses torch's fused implementation where there is one: not for RAdam.
    """
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer != "radam":
        settings["fused"] = all(p.device.type in _FUSED_ON for p in parameters.values())
    return _CLASSES[config.optimizer](parameters.values(), **settings)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """The optimizer's state, each tensor as "<parameter>/<entry>": "layers.0.weight/exp_avg".

    For a parameter that has had no gradient yet these are zeros, the initial state.
    """
    return {
        f"{name}/{entry}": optimizer.state.get(parameter, {}).get(entry, initial)
        for name, parameter in parameters.items()
        for entry, initial in _initial_state(parameter).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
) -> None:
    """Restores what `optimizer_tensors` returned; learning rate and weight decay do not change."""
    state = {
        position: {entry: tensors[f"{name}/{entry}"] for entry in _initial_state(parameter)}
        for position, (name, parameter) in enumerate(parameters.items())
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _initial_state(parameter: Tensor) -> dict[str, Tensor]:
    # All optimizers here are variants of Adam, with the same state for a parameter.
    averages = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros(()), **averages}


class _LossModule(nn.Module):
    """Model and loss as one module, because data parallelism needs the loss inside `forward`."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Tensor:
        loss = self.loss(self.model, batch)
        if loss.dim():
            raise ValueError(expected("loss", "a scalar tensor", f"shape {tuple(loss.shape)}"))
        return loss


class Updater:
    """Makes the updates of a run.

    Args:
        accelerator: device and processes. Each process takes its slice of every batch.
        model: trained in place, moved to the accelerator's device.
        data: the examples.
        loss: (model, batch) -> the mean over the examples of the batch, a scalar.
        config: the training configuration.
        order: the examples of each update; by default permutations.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        data: TrainingData,
        loss: Loss,
        config: TrainingConfig,
        order: Order | None = None,
    ) -> None:
        self.accelerator = accelerator
        self._data = data
        self.config = config
        self._order = order or ExampleOrder(len(data), config.batch_size, config.seed)
        model.to(accelerator.device)
        self.model = model
        self.parameters = trainable_parameters(model)
        self.optimizer = build_optimizer(config, self.parameters)
        self._module, self._stepper = accelerator.prepare(_LossModule(model, loss), self.optimizer)

    def update(self, step: int, errors: Errors = ()) -> Tensor:
        """Makes the update that follows `step` others; returns this process's loss before it.

        Args:
            errors: as for `learning_rate`.
        """
        indices = self._own_slice(self._order.indices(step))
        batch = send_to_device(
            self._data.batch(indices), self.accelerator.device, non_blocking=True
        )
        loss: Tensor = self._module(batch)
        self.accelerator.backward(loss)
        if self.config.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.parameters.values(), self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step, errors)
        self._stepper.step()
        self._stepper.zero_grad()
        return loss.detach()

    def require_finite_weights(self, step: int) -> None:
        """Raises ValueError if a weight is not finite, so that no checkpoint holds one."""
        finite = [parameter.detach().isfinite().all() for parameter in self.parameters.values()]
        if not torch.stack(finite).all():
            raise not_finite("weights", "NaN or infinity", step)

    def _own_slice(self, indices: Tensor) -> Tensor:
        share = len(indices) // self.accelerator.num_processes
        start = share * self.accelerator.process_index
        return indices[start : start + share]


def not_finite(what: str, value: object, step: int) -> ValueError:
    """The error that ends a run whose numbers overflowed."""
    advice = (
        "no checkpoint was written since, so try a smaller learning_rate, a clip_norm or more "
        "warmup_steps in a new run"
    )
    return ValueError(expected(f"{what} at step {step}", "finite numbers", value, advice))
