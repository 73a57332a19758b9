"""One update of the weights, on one process or many, and the state that updates depend on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor, nn

from linattn_core.errors import expected, quote
from linattn_models.training.config import TrainingConfig
from linattn_models.training.data import ExampleOrder, Order, TrainingData
from linattn_models.training.division import (
    copy_for_training,
    gather,
    gather_weights,
    scatter,
    scatter_weights,
    shard_weights,
)
from linattn_models.training.random_state import get_random_state, seed_all, set_random_state
from linattn_models.training.schedule import Errors, learning_rate

Loss = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]

_OPTIMIZERS = {"radam": torch.optim.RAdam, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_FUSED_ON = ("cpu", "cuda")


class Updater:
    """Makes the updates of a run.

    Attributes:
        model: the model, whole on every process. What `trained` has learned is in it after
            `gather_weights`.
        trained: the module that is trained: `model` itself, or a copy (`division`).

    Args:
        accelerator: device and processes. Each process takes its part of every batch.
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
        device, processes = accelerator.device, accelerator.num_processes
        self.model = model.to(device)
        self._shards = config.shards(processes)
        self.trained = copy_for_training(model, config, processes, device)
        module: nn.Module = _LossModule(self.trained, loss)
        if self._shards:
            shard_weights(module, processes, device)
            self.scatter_weights()
            self.model.to("cpu")  # the device holds its own part alone
        named = self.trained.named_parameters()
        self.parameters = {name: p for name, p in named if p.requires_grad}
        _require_trainable(self.parameters)
        self.optimizer = build_optimizer(config, self.parameters)
        self._module = accelerator.prepare_model(module, evaluation_mode=self._shards)
        self._stepper = accelerator.prepare_optimizer(self.optimizer)

    def update(self, step: int, errors: Errors = ()) -> Tensor:
        """Makes the update that follows `step` others; returns this process's loss before it.

        Args:
            errors: for the schedule plateau, (updates made before it, error) of each evaluation.
        """
        loss = self._compute_gradients(self._order.indices(step))
        if self.config.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.parameters.values(), self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step, errors)
        self._stepper.step()
        self._stepper.zero_grad()
        return loss

    def _compute_gradients(self, indices: Tensor) -> Tensor:
        """Adds up the gradients of the own parts of a batch; returns this process's loss.

        Gradients and logged losses are means over the processes. So a process multiplies what is
        its part of a sum by their number; the result is that of the whole batch, however it is
        divided.
        """
        parts, processes = self._own_parts(indices), self.accelerator.num_processes
        losses, counts = [], []
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            with nullcontext() if last else self.accelerator.no_sync(self._module):
                loss, count = self._compute_loss(part, indices)
                if count is not None:
                    counts.append(count)
                    # Of several parts, the number of all terms is known after the last one.
                    known = self._count_all(count) if len(parts) == 1 else len(indices)
                    loss = loss * processes / known
                self.accelerator.backward(loss)
            losses.append(loss.detach())
        total = torch.stack(losses).sum() if len(losses) > 1 else losses[0]
        if len(counts) < 2:
            return total
        all_terms = float(self._count_all(torch.stack(counts).sum()))
        factor = len(indices) / all_terms if all_terms else math.nan
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad *= factor
        return total * factor

    def _compute_loss(self, part: Tensor, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The sum of the terms of a part and their number, or its share of a mean and None."""
        # All processes run each pass; one that has no example of its own computes another's.
        computed = part if len(part) else indices[:1]
        batch = send_to_device(
            self._data.batch(computed), self.accelerator.device, non_blocking=True
        )
        result: tuple[Tensor, Tensor | None] = self._module(batch)
        loss, count = result
        if count is None:
            return loss * (self.accelerator.num_processes * len(part) / len(indices)), None
        return (loss, count) if len(part) else (loss * 0, count * 0)

    def _count_all(self, count: Tensor) -> Tensor:
        """The number of a loss's terms on all processes."""
        if self.accelerator.num_processes == 1:
            return count
        total: Tensor = self.accelerator.reduce(count, reduction="sum")
        return total

    def gather_weights(self) -> None:
        """Puts what was learned into `model`; all processes must call it."""
        gather_weights(self.trained, self.model)

    def scatter_weights(self) -> None:
        """Trains on from the weights of `model`; all processes must call it."""
        scatter_weights(self.model, self.trained)

    @contextmanager
    def whole_model(self) -> Iterator[nn.Module]:
        """The model with what was learned, on the device; all processes must enter it."""
        self.gather_weights()
        self.model.to(self.accelerator.device)
        try:
            yield self.model
        finally:
            if self._shards:
                self.model.to("cpu")

    def require_finite_weights(self, step: int) -> None:
        """Raises ValueError if a weight of `model` is not finite, so that no checkpoint has one."""
        finite = [x.detach().isfinite().all() for x in self.model.parameters() if x.requires_grad]
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
            "optimizer": {
                name: {key: _gather_on_cpu(x) for key, x in state.get(p, {}).items()}
                for name, p in self.parameters.items()
            },
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
        by_position = {
            position: {
                # The count of the updates has no shape of a parameter.
                key: x if key == "step" else scatter(x, self.parameters[name])
                for key, x in entry.items()
            }
            for position, (name, entry) in enumerate(entries.items())
        }
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

    def _own_parts(self, indices: Tensor) -> list[Tensor]:
        """This process's parts of a batch, one for each pass; parts may be empty."""
        # Processes that divide a sequence have the same examples.
        sharing = self.accelerator.num_processes // self.config.context_parallel
        index = self.accelerator.process_index // self.config.context_parallel
        passes = self.config.gradient_accumulation_steps
        return list(indices.tensor_split(sharing * passes))[index * passes : (index + 1) * passes]


def _require_trainable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuses a model without parameters, and weights in which an update is lost by rounding."""
    if not parameters:
        raise ValueError(expected("model", "a parameter that requires a gradient", "none"))
    for name, parameter in parameters.items():
        if parameter.dtype.itemsize < torch.float32.itemsize:
            got = f"{quote(name)} in {parameter.dtype}"
            advice = "convert it by model.float(); mixed_precision computes in 16 bits"
            raise ValueError(expected("model", "weights in float32 or float64", got, advice))


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


def _gather_on_cpu(value: Any) -> Any:
    """The whole of a value of the optimizer's state, of which processes may have parts."""
    whole = gather(value)
    return value if whole is value else whole.cpu()


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
