"""One update of the weights: a step's batch, its loss, its gradient, on one process or many."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, send_to_device
from torch import Tensor, nn

from linattn_models.training.config import TrainingConfig
from linattn_models.training.data import ExampleOrder, TrainingData
from linattn_models.training.optimizers import build_optimizer, trainable_parameters
from linattn_models.training.schedules import learning_rate

Loss = Callable[[Any, Any], Tensor]

# The others wait while the main process evaluates: longer than the ten minutes that torch allows.
_LONGEST_EVALUATION = timedelta(hours=6)


def make_accelerator(config: TrainingConfig) -> Accelerator:
    """The accelerator of a run: device, precision and the processes that torchrun started.

    Raises:
        ValueError: if the processes cannot share a batch evenly, or the device lacks the precision.
    """
    # A process may train twice, in two precisions: accelerate's state would hold on to the first.
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        # Left to itself, accelerate takes processes on a CPU for runs that have nothing in common.
        cpu=int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available(),
        mixed_precision=config.mixed_precision,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_LONGEST_EVALUATION)],
    )
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise ValueError(
            "training runs on one process or data-parallel under torchrun, accelerate is set up "
            f"for {kind}"
        )
    if config.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError(
            "mixed_precision='fp16' needs an accelerator, this process has a CPU only: use 'bf16' "
            "or 'no'"
        )
    if config.batch_size % accelerator.num_processes:
        raise ValueError(
            "batch_size counts the examples of all processes and must divide by their number "
            f"{accelerator.num_processes}, got {config.batch_size}"
        )
    return accelerator


class _LossModule(nn.Module):
    """Model and loss as one module: data parallelism must see the forward that it averages."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Tensor:
        loss = self.loss(self.model, batch)
        if loss.dim():
            raise ValueError(
                f"loss must return one number, got a tensor of shape {tuple(loss.shape)}"
            )
        return loss


class Updater:
    """Makes the updates of a run.

    Args:
        accelerator: device and processes. Each process takes its slice of every batch.
        model: trained in place, moved to the accelerator's device.
        data: where batches come from.
        loss: (model, batch) -> the mean over the examples of the batch, a scalar.
        config: the training configuration.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        data: TrainingData,
        loss: Loss,
        config: TrainingConfig,
    ) -> None:
        self._accelerator = accelerator
        self._data = data
        self._config = config
        self._order = ExampleOrder(len(data), config.batch_size, config.seed)
        model.to(accelerator.device)
        self.parameters = trainable_parameters(model)
        self.optimizer = build_optimizer(config, self.parameters)
        self._module, self._stepper = accelerator.prepare(_LossModule(model, loss), self.optimizer)

    def update(self, step: int) -> Tensor:
        """Makes the update that follows `step` others; returns this process's loss before it."""
        indices = self._own_slice(self._order.indices(step))
        batch = send_to_device(
            self._data.batch(indices), self._accelerator.device, non_blocking=True
        )
        loss: Tensor = self._module(batch)
        self._accelerator.backward(loss)
        if self._config.clip_norm is not None:
            self._accelerator.clip_grad_norm_(self.parameters.values(), self._config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._config, step)
        self._stepper.step()
        self._stepper.zero_grad()
        return loss.detach()

    def require_finite_weights(self, step: int) -> None:
        """Raises ValueError if a weight is not finite, so that no checkpoint holds one."""
        finite = [parameter.detach().isfinite().all() for parameter in self.parameters.values()]
        if not torch.stack(finite).all():
            raise not_finite("weights", "not finite", step)

    def _own_slice(self, indices: Tensor) -> Tensor:
        share = len(indices) // self._accelerator.num_processes
        start = share * self._accelerator.process_index
        return indices[start : start + share]


def not_finite(what: str, value: object, step: int) -> ValueError:
    """The error that ends a run whose numbers overflowed."""
    return ValueError(
        f"training broke down: {what} {value} at step {step}, and no checkpoint was written since; "
        "try a smaller learning_rate, a clip_norm or more warmup_steps in a new run"
    )
