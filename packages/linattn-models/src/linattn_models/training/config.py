"""The configuration of a training, and which part of it a resumed run may not change."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from linattn_core.errors import expected, quote
from linattn_models.validation import as_int, one_of

Optimizer = Literal["radam", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "trapezoid", "step", "plateau"]
MixedPrecision = Literal["no", "bf16", "fp16"]

SUMMARIZED = {"seed", "parameters", "steps", "train_seconds", "metrics", "environment"}
"""Names in `summary.json` that the application may not use for its own values."""

FREE_ON_RESUME = frozenset(
    {"steps", "log_every", "eval_every", "checkpoint_every", "keep_checkpoints"}
)
"""Fields that a resumed run may change: none of them alters the updates already made."""

ENDING = frozenset({"cosine", "trapezoid"})
"""Schedules that reach 0 at the last step, so that a longer run has other rates."""

_COOLDOWN = 5  # the trapezoid falls over the last fifth of the steps
_LONGEST_WARMUP = 100  # where warmup_steps is None
# The smallest allowed value of each integer field.
_LEAST = {
    **dict.fromkeys(("steps", "batch_size", "log_every", "keep_checkpoints"), 1),
    **dict.fromkeys(("eval_every", "checkpoint_every", "drop_at", "patience"), 1),
    **dict.fromkeys(("warmup_steps", "seed"), 0),
}
_OPTIONAL = frozenset({"eval_every", "checkpoint_every", "drop_at", "patience"})
_OPTIONAL |= {"warmup_steps", "clip_norm"}


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
    """How the model is trained."""

    # The fields of TrainingConfig, unchecked: presets set them and a command line overrides them.
    # The docstrings are the help of the flags.

    steps: int
    """Updates in all, counted from the beginning of the run and not from the last resume."""
    batch_size: int
    """Examples an update sees, over all processes together."""
    learning_rate: float = 1e-4
    """The highest rate; the schedule and the warm-up scale it."""
    optimizer: Optimizer = "radam"
    """radam and adam add weight decay to the gradient, adamw decouples it."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the optimizer's running means of the gradient and of its square."""
    schedule: Schedule = "constant"
    """constant; cosine: to 0 at the last step; trapezoid: constant, and over the last fifth of the
    steps linearly to 0; step: times drop-factor after drop-at updates; plateau:
    times drop-factor whenever the validation error has stopped falling."""
    warmup_steps: int | None = 0
    """Updates over which the rate rises from 0; None: a tenth of the steps, at most 100."""
    drop_at: int | None = None
    """For the schedule step: the updates after which the rate drops."""
    drop_factor: float = 0.1
    """For the schedules step and plateau: what the rate is then multiplied by."""
    patience: int | None = None
    """For the schedule plateau: evaluations in a row that are no better than the best, after which
    the rate drops."""
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """The largest 2-norm of a gradient, which a larger one is scaled down to; None: no limit."""
    mixed_precision: MixedPrecision = "no"
    """fp16 scales the loss and needs an accelerator."""
    log_every: int = 10
    """Updates between two lines of training loss, each the mean since the line before."""
    eval_every: int | None = None
    """Updates between evaluations; None: one at the end."""
    checkpoint_every: int | None = None
    """Updates between checkpoints; None: one at the end or when stopped."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay on disk."""
    seed: int = 0
    """Decides the weights at the start, the order of the examples and every random draw."""

    def config(self) -> TrainingConfig:
        """The same values, checked; an error names the flag."""
        try:
            return TrainingConfig(**vars(self))
        except ValueError as error:
            field, _, rest = str(error).partition(":")
            raise ValueError(f"--{field.replace('_', '-')}:{rest}") from None


adamw_flags = functools.partial(
    TrainingFlags, optimizer="adamw", schedule="cosine", warmup_steps=None, clip_norm=1.0
)
"""`TrainingFlags` with AdamW, a short warm-up, a cosine to 0 and clipped gradients."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig(TrainingFlags):
    """The checked settings of a run: its updates, and how often it is logged and saved.

    The fields are described in `TrainingFlags`.

    Raises:
        ValueError: if a field has the wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            self._require_integer(name, least)
        for name in ("learning_rate", "drop_factor", "clip_norm"):
            self._require_number(name, "a finite number above 0", lambda value: value > 0)
        self._require_betas()
        self._require_number("weight_decay", "a finite number of at least 0", lambda v: v >= 0)
        for name in ("optimizer", "schedule", "mixed_precision"):
            one_of(name, getattr(self, name), get_args(get_type_hints(type(self))[name]))
        self._require_schedule()

    @property
    def warmup(self) -> int:
        """The updates of the warm-up: `warmup_steps`, or for None derived from `steps`."""
        if self.warmup_steps is None:
            return min(_LONGEST_WARMUP, self.steps // 10)
        return self.warmup_steps

    @property
    def cooldown(self) -> int:
        """The updates at the end over which the schedule trapezoid falls: a fifth, at least 1."""
        return max(1, self.steps // _COOLDOWN)

    def settled(self, begun: Mapping[str, Any] | None = None) -> TrainingConfig:
        """The configuration with a number for the warm-up: that of `config.json` when resumed.

        Args:
            begun: the content of `config.json` of the run that is resumed; None for a new run.

        Raises:
            ValueError: the schedule is in `ENDING` and `steps` does not exceed the warm-up.
        """
        if self.warmup_steps is not None:
            return self
        training = {} if begun is None else begun.get("training")
        before = training.get("warmup_steps") if isinstance(training, dict) else None
        if isinstance(before, int) and self.schedule in ENDING and before >= self.steps:
            wanted = f"more than the {before} updates of the warm-up that the run began with"
            raise ValueError(expected("steps", wanted, self.steps))
        return dataclasses.replace(self, warmup_steps=self.warmup if before is None else before)

    def to_dict(self) -> dict[str, object]:
        """The fields by name, as plain JSON values."""
        return {**dataclasses.asdict(self), "betas": list(self.betas)}

    def _require_integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if name in _OPTIONAL and value is None:
            return
        number = as_int(value)
        if number is None or number < least:
            wanted = f"an integer of at least {least}{_or_none(name)}"
            raise ValueError(expected(name, wanted, quote(value)))
        object.__setattr__(self, name, number)  # JSON has no integers of NumPy

    def _require_number(self, name: str, wanted: str, allowed: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        if name in _OPTIONAL and value is None:
            return
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not allowed(value):
            raise ValueError(expected(name, wanted + _or_none(name), quote(value)))

    def _require_betas(self) -> None:
        betas: Any = self.betas
        if isinstance(betas, list):  # from JSON
            betas = tuple(betas)
            object.__setattr__(self, "betas", betas)
        numbers = isinstance(betas, tuple) and len(betas) == 2
        if not numbers or not all(isinstance(b, float | int) and 0 <= b < 1 for b in betas):
            raise ValueError(expected("betas", "two numbers from 0 to below 1", quote(betas)))

    def _require_schedule(self) -> None:
        for name, owner in (("drop_at", "step"), ("patience", "plateau")):
            value = getattr(self, name)
            if (self.schedule == owner) != (value is not None):
                wanted = f"a number with the schedule {owner!r} and None with any other"
                raise ValueError(expected(name, wanted, f"{value} with {self.schedule!r}"))
        if self.schedule == "plateau" and self.eval_every is None:
            raise ValueError(expected("eval_every", "a number with the schedule 'plateau'", "None"))
        if self.schedule in ENDING and self.warmup >= self.steps:
            wanted = f"fewer than steps={self.steps} with the schedule {self.schedule!r}"
            raise ValueError(expected("warmup_steps", wanted, self.warmup))


def run_config(
    describe: Mapping[str, object],
    model_config: Mapping[str, object],
    config: TrainingConfig,
    examples: int,
) -> dict[str, Any]:
    """The content of `config.json`.

    Raises:
        ValueError: if `describe` has a name that config.json or summary.json uses already.
        TypeError: if a value is not JSON.
    """
    own = {"model": dict(model_config), "training": config.to_dict(), "examples": examples}
    for name in sorted((own.keys() | SUMMARIZED) & describe.keys()):
        raise ValueError(expected("describe", "names of the application's own", quote(name)))
    # Through JSON and back, so that a tuple equals the list that is read from the file.
    return dict(json.loads(json.dumps({**describe, **own})))


def fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of the fields of a `config.json` that a resumed run may not change."""
    content = json.dumps(_fixed(config), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def require_same_run(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuses to resume a run with configuration `before` under another configuration, `now`.

    Raises:
        ValueError: naming every field that differs, with both values.
    """
    old, new = _fixed(before), _fixed(now)
    names = [name for name in sorted(old | new) if _value(old, name) != _value(new, name)]
    if names:
        listed = "; ".join(f"{n} was {_value(old, n)} and is now {_value(new, n)}" for n in names)
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


def _or_none(name: str) -> str:
    return " or None" if name in _OPTIONAL else ""


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    free = {f"training.{name}" for name in FREE_ON_RESUME}
    return {name: value for name, value in flatten(config).items() if name not in free}


def _value(flat: Mapping[str, Any], name: str) -> str:
    return json.dumps(flat[name]) if name in flat else "absent"
