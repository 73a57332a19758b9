"""How far a run has come: what a checkpoint records besides tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any


@dataclass
class Progress:
    """The position of a run.

    Args:
        step: updates made. It is also the position in the data.
        train_seconds: spent in updates, over all resumes, evaluations and checkpoints left out.
        metrics_lines: lines of `metrics.jsonl` when the last checkpoint was written.
        unlogged_losses: of the updates since the last line of training loss.
        evaluated_at: the step of the last evaluation, 0 if there was none.
        metrics: what the last evaluation returned.
    """

    step: int = 0
    train_seconds: float = 0.0
    metrics_lines: int = 0
    unlogged_losses: list[float] = field(default_factory=list)
    evaluated_at: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], source: object) -> Progress:
        """The progress that a checkpoint recorded.

        Raises:
            ValueError: naming a field that `source` lacks.
        """
        for item in fields(cls):
            if item.name not in record:
                raise ValueError(f"{source} is damaged: it lacks the field {item.name!r}")
        return cls(**{item.name: record[item.name] for item in fields(cls)})

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time that the body takes as training."""
        started = perf_counter()
        yield
        self.train_seconds += perf_counter() - started
