"""Methods of the registry, measured by an instrument; what a method raises becomes its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch

from benchmarks.gpu.instrument import Instrument
from benchmarks.registry import Absent, Method, NotMeasured

WARM_UP_CALLS = 2
RAISED = "raised"
REFUSED = "refuses this call"  # as linattn_core says it of a backend
Result = TypeVar("Result")


class DeviceLost(Exception):
    """A kernel failed so that this process can use the GPU no more; the message names it."""


def placed(name: str, make: Callable[[], Method | Absent], on: Instrument) -> Method | Absent:
    """Returns the method that `make` gives, checked and measured on the instrument's device.

    Raises:
        DeviceLost: from here, its check or its measurement.
    """
    try:
        made = guarded(name, make, on)
    except NotMeasured as reason:
        return Absent(name, str(reason))
    if isinstance(made, Absent):
        return dataclasses.replace(made, name=name)
    checked, run = made.check, made.run
    if run is None:  # it measures itself
        measure = made.measure
        assert measure is not None
        return dataclasses.replace(
            made, name=name, rate="gemm_bfloat16",
            check=lambda: guarded(name, checked, on), measure=lambda: guarded(name, measure, on),
        )  # fmt: skip

    def check() -> str | None:
        fault = checked()
        for _ in range(WARM_UP_CALLS if fault is None else 0):
            run()
        return fault

    return dataclasses.replace(
        made,
        name=name,
        rate="gemm_bfloat16",
        check=lambda: guarded(name, check, on),
        run=None,
        measure=lambda: guarded(name, lambda: on.seconds(run), on),
        peak=lambda: guarded(name, lambda: on.peak(run), on),
    )


def guarded(name: str, call: Callable[[], Result], on: Instrument) -> Result:
    """Returns what the call does, or raises the reason why it cannot be measured."""
    try:
        return call()
    except NotMeasured:
        raise
    except torch.OutOfMemoryError:
        raise NotMeasured("does not fit in the GPU's memory") from None
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        if not on.alive():
            raise DeviceLost(f"{name} left the GPU unusable: {words}") from error
        refused = isinstance(error, ValueError) and REFUSED in words
        raise NotMeasured(words if refused else f"{RAISED} {words}") from error
