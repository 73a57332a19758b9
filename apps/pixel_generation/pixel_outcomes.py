"""What came of timing a method: figures for one image and for many, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pixel_batches import Found, Limits, Trial, best_batch
from pixel_memory import free_bytes, with_peak
from pixel_methods import Method
from pixel_speed import Models, Speed, speed_of, time_method

from linattn_models.training.script import lacks_memory

# Enough to tell two batch sizes apart; of the one that is chosen more positions are timed.
_SEARCH_POSITIONS = 3


@dataclass(frozen=True)
class Plan:
    """How each method is timed.

    batch: images side by side; None for the best number, searched within `limits`.
    positions: pixels of an image; None for all.
    """

    batch: int | None
    positions: int | None
    limits: Limits


@dataclass(frozen=True)
class Outcome:
    """One method's figures; where there are none, `failure` says why.

    one, many: an image alone, and many side by side.
    bounded_by: what kept larger batches from being tried, if not that they were no better.
    """

    method: Method
    one: Speed | None = None
    many: Speed | None = None
    bounded_by: str | None = None
    failure: str | None = None

    @property
    def speeds(self) -> list[Speed]:
        """Those that there are, each once."""
        return [x for x in dict.fromkeys((self.one, self.many)) if x is not None]


def outcome_of(models: Models, method: Method, plan: Plan) -> Outcome:
    """Times a method. What it cannot do is part of the outcome, so that the others go on."""
    try:
        return _timed(models, method, plan)
    except (ValueError, MemoryError, RuntimeError) as error:
        if not isinstance(error, ValueError) and not lacks_memory(error):
            raise
        return Outcome(method, failure=" ".join(str(error).split()))


def _timed(models: Models, method: Method, plan: Plan) -> Outcome:
    batch, bounded_by = plan.batch, None
    if batch is None:
        found = _search(models, method, plan.limits)
        batch, bounded_by = found.best.batch, found.bounded_by
    measured = partial(_speed, models, method, positions=plan.positions)
    many = measured(batch)
    return Outcome(method, many if batch == 1 else measured(1), many, bounded_by)


def _speed(models: Models, method: Method, batch: int, positions: int | None) -> Speed:
    return speed_of(method, time_method(models, method, batch, positions), batch)


def _search(models: Models, method: Method, limits: Limits) -> Found:
    device = models[method.attention].device
    return best_batch(partial(_try, models, method), partial(free_bytes, device), limits)


def _try(models: Models, method: Method, batch: int) -> Trial:
    timed, peak = with_peak(
        models[method.attention].device,
        partial(time_method, models, method, batch, _SEARCH_POSITIONS),
    )
    return Trial(
        batch,
        timed.samples_per_second,
        bytes_used=max(peak, batch * timed.state_bytes_per_sample),
        slowest=max(seconds for _, seconds in timed.seconds_per_step),
    )
