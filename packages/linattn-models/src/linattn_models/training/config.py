"""The configuration of a training, and which part of it a resumed run may not change."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import as_int

Optimizer = Literal["radam", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "trapezoid", "step", "plateau"]
MixedPrecision = Literal["no", "bf16", "fp16"]
Parallel = Literal["ddp", "fsdp"]


Count = Annotated[int, Field(strict=True, ge=1)]
Natural = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(strict=True, ge=0, lt=1)]

SUMMARIZED = {"seed", "parameters", "steps", "train_seconds", "metrics", "environment"}
"""Names in `summary.json` that the application may not use for its own values."""

FREE_ON_RESUME = {
    *("steps", "log_every", "eval_every", "checkpoint_every", "keep_checkpoints"),
    *("parallel", "context_parallel", "gradient_accumulation_steps", "activation_checkpointing"),
}
"""Fields that a resumed run may change: none of them alters the updates already made."""

ENDING = {"cosine", "trapezoid"}
"""Schedules that reach 0 at the last step, so that a longer run has other rates."""

_COOLDOWN = 5  # the trapezoid falls over the last fifth of the steps
_LONGEST_WARMUP = 100  # where warmup_steps is None


@dataclass(frozen=True)
class TrainingFlags:
    """How the model is trained.

    Args:
        steps: updates in all, counted from the beginning of the run and not from the last resume.
        batch_size: examples an update sees, over all processes together.
        learning_rate: the highest rate; the schedule and the warm-up scale it.
        optimizer: radam and adam add weight decay to the gradient, adamw decouples it.
        betas: decay rates of the optimizer's running means of the gradient and of its square.
        schedule: constant; cosine: to 0 at the last step; trapezoid: constant, and over the last
            fifth of the steps linearly to 0; step: times drop-factor after drop-at updates;
            plateau: times drop-factor whenever the validation error has stopped falling.
        warmup_steps: updates over which the rate rises from 0; None: a tenth of the steps, at most
            100.
        drop_at: for the schedule step: the updates after which the rate drops.
        drop_factor: for the schedules step and plateau: what the rate is then multiplied by.
        patience: for the schedule plateau: evaluations in a row that are no better than the best,
            after which the rate drops.
        weight_decay: of the optimizer.
        clip_norm: the largest 2-norm of a gradient, which a larger one is scaled down to; None: no
            limit.
        mixed_precision: fp16 scales the loss and needs an accelerator.
        parallel: what the processes of torchrun divide. ddp: the batch; fsdp: also the weights,
            their gradients and the state of the optimizer (`fully_shard`).
        context_parallel: processes among which the length of each sequence is divided, for an
            AutoregressiveTransformer with linear attention.
        gradient_accumulation_steps: parts of a process's batch that are computed one after the
            other, in less memory.
        activation_checkpointing: computes the activations of each block again in the backward
            pass instead of keeping them.
        log_every: updates between two lines of training loss, each the mean since the line before;
            the first update has a line, too.
        eval_every: updates between evaluations; None: one at the end.
        checkpoint_every: updates between checkpoints; None: one at the end or when stopped.
        keep_checkpoints: how many of the newest checkpoints stay on disk.
        seed: decides the weights at the start, the order of the examples and every random draw.
    """

    # Unchecked: presets set the fields and a command line overrides them.
    steps: Count
    batch_size: Count
    learning_rate: Positive = 1e-4
    optimizer: Optimizer = "radam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    schedule: Schedule = "constant"
    warmup_steps: Natural | None = 0
    drop_at: Count | None = None
    drop_factor: Positive = 0.1
    patience: Count | None = None
    weight_decay: NotNegative = 0.0
    clip_norm: Positive | None = None
    mixed_precision: MixedPrecision = "no"
    parallel: Parallel = "ddp"
    context_parallel: Count = 1
    gradient_accumulation_steps: Count = 1
    activation_checkpointing: Annotated[bool, Field(strict=True)] = False
    log_every: Count = 10
    eval_every: Count | None = None
    checkpoint_every: Count | None = None
    keep_checkpoints: Count = 2
    seed: Natural = 0

    def config(self) -> TrainingConfig:
        """The same values, checked; an error names the flag."""
        return TrainingConfig(**_check(self, lambda name: f"--{name.replace('_', '-')}"))

    @property
    def warmup(self) -> int:
        """The updates of the warm-up: `warmup_steps`, or for None derived from `steps`."""
        if self.warmup_steps is None:
            return min(_LONGEST_WARMUP, self.steps // 10)
        return self.warmup_steps


adamw_flags = functools.partial(
    TrainingFlags, optimizer="adamw", schedule="cosine", warmup_steps=None, clip_norm=1.0
)
"""`TrainingFlags` with AdamW, a short warm-up, a cosine to 0 and clipped gradients."""


@dataclass(frozen=True)
class TrainingConfig(TrainingFlags):
    """The checked settings of a run. A field of a wrong type or out of range is a ValueError."""

    def __post_init__(self) -> None:
        for name, value in _check(self).items():
            object.__setattr__(self, name, value)

    @property
    def cooldown(self) -> int:
        """The updates at the end over which the schedule trapezoid falls: a fifth, at least 1."""
        return max(1, self.steps // _COOLDOWN)

    def shards(self, processes: int) -> bool:
        """Whether the weights are divided among so many processes."""
        return self.parallel == "fsdp" and processes > 1

    def settle_warmup(self, begun: Mapping[str, Any] | None = None) -> TrainingConfig:
        """The configuration with a number for the warm-up: that of `config.json` when resumed.

        Args:
            begun: the content of `config.json` of the run that is resumed; None for a new run.
        """
        if self.warmup_steps is not None:
            return self
        before = None if begun is None else begun["training"].get("warmup_steps")
        return replace(self, warmup_steps=self.warmup if before is None else before)

    def to_dict(self) -> dict[str, object]:
        """The fields by name, as plain JSON values."""
        return {**asdict(self), "betas": list(self.betas)}


# help() shows no docstring of a base class.
TrainingConfig.__doc__ = str(TrainingConfig.__doc__) + str(TrainingFlags.__doc__).partition(".")[2]

_FIELDS = TypeAdapter(TrainingFlags)


def _check(flags: TrainingFlags, name_of: Callable[[str], str] = str) -> dict[str, Any]:
    """The values as plain Python has them; refuses a wrong one by its name."""
    values = {name: _to_plain(value) for name, value in vars(flags).items()}
    try:
        checked = _FIELDS.validate_python(values)
    except ValidationError as error:
        name, wanted, got = first_fault(error)
        raise ValueError(expected(name_of(name), wanted, got)) from None
    for name, wanted, found in _find_contradictions(checked):
        raise ValueError(expected(name_of(name), wanted, found))
    return values


def _to_plain(value: Any) -> Any:
    """An integer of NumPy or torch as an int, a list from JSON as a tuple."""
    number = as_int(value)
    if number is not None:
        return number
    return tuple(value) if isinstance(value, list) else value


def first_fault(error: ValidationError) -> tuple[str, str, str]:
    """Of an error of pydantic: the first wrong value's name, what it should be, what it is."""
    fault = error.errors()[0]
    name = ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return name, "a value", "none"
    wanted = re.sub(r"^\w+ should (be|have) ", "", fault["msg"])
    if wanted.startswith(("greater", "less")):
        wanted = f"a number {wanted}"
    return name, wanted, quote(fault["input"])


def _find_contradictions(flags: TrainingFlags) -> Iterator[tuple[str, str, object]]:
    """Fields that do not fit the schedule: their names, what would fit, and what they are."""
    for name, owner in (("drop_at", "step"), ("patience", "plateau")):
        value = getattr(flags, name)
        if (flags.schedule == owner) != (value is not None):
            wanted = f"a number with the schedule {owner!r} and None with any other"
            yield name, wanted, f"{value} with {flags.schedule!r}"
    if flags.schedule == "plateau" and flags.eval_every is None:
        yield "eval_every", "a number with the schedule 'plateau'", "None"
    if flags.schedule in ENDING and flags.warmup >= flags.steps:
        wanted = f"fewer than steps={flags.steps} with the schedule {flags.schedule!r}"
        yield "warmup_steps", wanted, flags.warmup


def run_config(
    describe: Mapping[str, object],
    model_config: Mapping[str, object],
    config: TrainingConfig,
    examples: int,
) -> dict[str, Any]:
    """The content of `config.json`."""
    own = {"model": dict(model_config), "training": config.to_dict(), "examples": examples}
    for name in sorted((own.keys() | SUMMARIZED) & describe.keys()):
        raise ValueError(expected("describe", "names of the application's own", quote(name)))
    # Through JSON and back, so that a tuple equals the list that is read from the file.
    return dict(json.loads(json.dumps({**describe, **own})))


def fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of the fields of a `config.json` that a resumed run may not change."""
    content = json.dumps(_fixed_fields(config), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def require_same_run(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuses another configuration for a resumed run; names every field that differs."""
    old, new = _fixed_fields(before), _fixed_fields(now)
    names = [name for name in sorted(old | new) if _show(old, name) != _show(new, name)]
    if names:
        listed = "; ".join(f"{n} was {_show(old, n)} and is now {_show(new, n)}" for n in names)
        raise ValueError(
            f"the run in {folder} cannot be resumed with another configuration ({listed}): resume "
            "with the same values, or start a new run in another folder"
        )


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one flat mapping, with names joined by dots."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        nested = isinstance(item, Mapping)
        flat.update(flatten(item, f"{prefix}{name}.") if nested else {f"{prefix}{name}": item})
    return flat


def _fixed_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    free = {f"training.{name}" for name in FREE_ON_RESUME}
    return {name: value for name, value in flatten(config).items() if name not in free}


def _show(flat: Mapping[str, Any], name: str) -> str:
    return json.dumps(flat[name]) if name in flat else "absent"
