"""What a training run is told: one frozen, validated dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Literal, get_args, get_type_hints

Optimizer = Literal["radam", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "step"]
MixedPrecision = Literal["no", "bf16", "fp16"]

FREE_ON_RESUME = frozenset(
    {"steps", "log_every", "eval_every", "checkpoint_every", "keep_checkpoints"}
)
"""Fields that a resumed run may change: none of them alters the updates already made."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides the updates of a run, and how often it is logged, evaluated and kept.

    Args:
        steps: updates in all, counted from the beginning of the run and not from the last resume.
        batch_size: examples an update sees, over all processes together.
        learning_rate: the highest rate; `schedule` and `warmup_steps` scale it.
        optimizer: "radam" or "adam", which add weight decay to the gradient, or "adamw", which
            decouples it.
        schedule: "constant"; "cosine" (to 0 at `steps`); "step" (times `drop_factor` once `drop_at`
            updates are made).
        warmup_steps: updates over which the rate rises linearly from 0.
        drop_at: for the schedule "step", the updates made when the rate drops.
        drop_factor: for the schedule "step", what the rate is multiplied by.
        weight_decay: 0 is none.
        clip_norm: the 2-norm that the gradient of an update is scaled down to; None leaves it
            as it is.
        mixed_precision: "no", "bf16", or "fp16" (with loss scaling; needs an accelerator).
        log_every: updates between two lines of training loss, each the mean since the line before.
        eval_every: updates between evaluations; None evaluates at the end only.
        checkpoint_every: updates between checkpoints; None leaves one at the end (or when stopped)
            only.
        keep_checkpoints: the newest so many stay on disk.
        seed: decides the order of the examples and every random draw while training.

    Raises:
        ValueError: if a field has the wrong type or is out of range.
    """

    steps: int
    batch_size: int
    learning_rate: float = 1e-4
    optimizer: Optimizer = "radam"
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    drop_at: int | None = None
    drop_factor: float = 0.1
    weight_decay: float = 0.0
    clip_norm: float | None = None
    mixed_precision: MixedPrecision = "no"
    log_every: int = 10
    eval_every: int | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "keep_checkpoints"):
            self._require_integer(name, minimum=1)
        for name in ("eval_every", "checkpoint_every", "drop_at"):
            self._require_integer(name, minimum=1, optional=True)
        for name in ("warmup_steps", "seed"):
            self._require_integer(name, minimum=0)
        for name in ("learning_rate", "drop_factor"):
            self._require_number(name, above=0.0)
        self._require_number("clip_norm", above=0.0, optional=True)
        self._require_number("weight_decay", minimum=0.0)
        for name in ("optimizer", "schedule", "mixed_precision"):
            self._require_choice(name)
        self._require_schedule()

    def to_dict(self) -> dict[str, object]:
        """The fields by name, as plain JSON values."""
        return dataclasses.asdict(self)

    def _require_integer(self, name: str, minimum: int, optional: bool = False) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            expected = f"an integer of at least {minimum}" + (" or None" if optional else "")
            raise ValueError(f"{name} must be {expected}, got {value!r}")

    def _require_number(
        self,
        name: str,
        above: float = -math.inf,
        minimum: float = -math.inf,
        optional: bool = False,
    ) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= above or value < minimum:
            bound = f"above {above:g}" if above > -math.inf else f"of at least {minimum:g}"
            expected = f"a finite number {bound}" + (" or None" if optional else "")
            raise ValueError(f"{name} must be {expected}, got {value!r}")

    def _require_choice(self, name: str) -> None:
        value, choices = getattr(self, name), get_args(get_type_hints(type(self))[name])
        if value in choices:
            return
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")

    def _require_schedule(self) -> None:
        if (self.schedule == "step") != (self.drop_at is not None):
            raise ValueError(
                "drop_at says when the schedule 'step' drops the rate and goes with no other, "
                f"got schedule={self.schedule!r} and drop_at={self.drop_at!r}"
            )
        if self.schedule == "cosine" and self.warmup_steps >= self.steps:
            raise ValueError(
                "the schedule 'cosine' falls after the warm-up, so warmup_steps must be below "
                f"steps={self.steps}, got {self.warmup_steps}"
            )
