"""One update of the weights, on one process or many, and the state that updates depend on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.training.config import TrainingConfig
from linattn_models.training.data import ExampleOrder, Order, TrainingData
from linattn_models.training.random_state import get_random_state, seed_all, set_random_state
from linattn_models.training.schedule import Errors, learning_rate

Loss = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]

_OPTIMIZERS = {"radam": torch.optim.RAdam, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_FUSED_ON = ("cpu", "cuda")


class Updater:
    """Makes the updates of a run.

    Args:
        accelerator: device and processes. Each process takes its slice of every batch.
        model: trained in place, moved to the accelerator's device.
        data: the examples.
        loss: (model, batch) -> the mean over the examples of the batch, a scalar; or a sum and how
            many terms it has.
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
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError(expected("model", "a parameter that requires a gradient", "none"))
        self.optimizer = build_optimizer(config, self.parameters)
        self._module, self._stepper = accelerator.prepare(_LossModule(model, loss), self.optimizer)

    def update(self, step: int, errors: Errors = ()) -> Tensor:
        """Makes the update that follows `step` others; returns this process's loss before it.

        Args:
            errors: for the schedule plateau, (updates made before it, error) of each evaluation.
        """
        indices = self._own_slice(self._order.indices(step))
        batch = send_to_device(
            self._data.batch(indices), self.accelerator.device, non_blocking=True
        )
        result: tuple[Tensor, Tensor | None] = self._module(batch)
        loss, count = result
        if count is not None:
            loss = loss / self._mean_count(count)
        self.accelerator.backward(loss)
        if self.config.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.parameters.values(), self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step, errors)
        self._stepper.step()
        self._stepper.zero_grad()
        return loss.detach()

    def _mean_count(self, count: Tensor) -> Tensor:
        """The mean over the processes of a loss's number of terms.

        Gradients and logged losses are means over the processes, too; so the result is the sum of
        all terms by their number, however they are divided among the processes.
        """
        if self.accelerator.num_processes == 1:
            return count
        total: Tensor = self.accelerator.reduce(count.clone(), reduction="sum")
        mean: Tensor = total / self.accelerator.num_processes
        return mean

    def require_finite_weights(self, step: int) -> None:
        """Raises ValueError if a weight is not finite, so that no checkpoint holds one."""
        finite = [parameter.detach().isfinite().all() for parameter in self.parameters.values()]
        if not torch.stack(finite).all():
            raise not_finite("weights", "NaN or infinity", step)

    def get_state(self) -> dict[str, Any]:
        """What the next updates depend on besides the weights; all processes must call it."""
        accelerator = self.accelerator
        scaler = accelerator.scaler
        state = self.optimizer.state
        return {
            "device": accelerator.device.type,
            "threads": torch.get_num_threads(),
            "optimizer": {name: state.get(p, {}) for name, p in self.parameters.items()},
            "scaler": None if scaler is None else scaler.state_dict(),
            # One for each process.
            "random": gather_object([get_random_state(accelerator.device)]),
        }

    def set_state(self, state: Mapping[str, Any], step: int) -> None:
        """Puts back what `get_state` returned after `step` updates."""
        entries, names = state["optimizer"], list(self.parameters)
        if list(entries) != names:
            wanted, got = f"the parameters {', '.join(names)}", ", ".join(entries)
            raise ValueError(expected("the optimizer of the checkpoint", wanted, got))
        groups = self.optimizer.state_dict()["param_groups"]
        by_position = dict(enumerate(entries.values()))
        self.optimizer.load_state_dict({"state": by_position, "param_groups": groups})
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self._set_random_state(state["random"], state["device"], step)
        threads, now = state["threads"], torch.get_num_threads()
        if self.accelerator.device.type == "cpu" and threads != now:
            warnings.warn(
                f"the checkpoint was written with {threads} threads and is resumed with {now}: "
                "sums are rounded in another order than in a run that was not stopped",
                stacklevel=2,
            )

    def _set_random_state(self, states: list[dict[str, Any]], device: str, step: int) -> None:
        now = self.accelerator
        if (len(states), device) == (now.num_processes, now.device.type):
            set_random_state(states[now.process_index], now.device)
            return
        seed_all(self.config.seed, step, now.process_index)
        warnings.warn(
            f"the checkpoint was written by {len(states)} process(es) on {device} and is resumed "
            f"by {now.num_processes} on {now.device.type}: random draws such as dropout start "
            "afresh",
            stacklevel=2,
        )

    def _own_slice(self, indices: Tensor) -> Tensor:
        share = len(indices) // self.accelerator.num_processes
        start = share * self.accelerator.process_index
        return indices[start : start + share]


def build_optimizer(
    config: TrainingConfig, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer that `config` names; uses torch's fused one where there is one."""
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer != "radam":
        settings["fused"] = all(p.device.type in _FUSED_ON for p in parameters.values())
    optimizer: torch.optim.Optimizer = _OPTIMIZERS[config.optimizer](
        parameters.values(), **settings
    )
    return optimizer


def not_finite(what: str, value: object, step: int) -> ValueError:
    """The error that ends a run whose numbers overflowed."""
    advice = (
        "no checkpoint was written since, so try a smaller learning_rate, a clip_norm or more "
        "warmup_steps in a new run"
    )
    return ValueError(expected(f"{what} at step {step}", "finite numbers", value, advice))


class _LossModule(nn.Module):
    """Model and loss as one module, because data parallelism needs the loss inside `forward`."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        result = self.loss(self.model, batch)
        loss, count = result if isinstance(result, tuple) else (result, None)
        if loss.dim():
            raise ValueError(expected("loss", "a scalar tensor", f"shape {tuple(loss.shape)}"))
        return loss, count
