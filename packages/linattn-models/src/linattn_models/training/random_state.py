"""The random generators of a run: seeded once, kept in checkpoints, put back on resume."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch


def derive_seed(purpose: str, *numbers: int) -> int:
    """A 32-bit seed that differs wherever the purpose or any of the numbers does."""
    text = " ".join([purpose, *map(str, numbers)])
    # 32 bits, because the generators of torch on a CPU and of numpy use no more of a seed.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def seed_all(seed: int, step: int, process: int) -> None:
    """Seeds torch (every device), Python and numpy from the run's seed, a step and a process."""
    mixed = derive_seed("draws", seed, step, process)
    torch.manual_seed(mixed)
    random.seed(mixed)
    numpy.random.seed(mixed)


def get_random_state(device: torch.device) -> dict[str, Any]:
    """The state of the generators of torch's CPU and `device`, of Python and of numpy."""
    twister = numpy.random.get_state(legacy=False)
    key, position = twister["state"]["key"].tolist(), twister["state"]["pos"]
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        # With a list, because torch.load takes no arrays of numpy.
        "numpy": {**twister, "state": {"key": key, "pos": position}},
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Puts back what `get_random_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"])


@contextmanager
def preserve_random_state(device: torch.device) -> Iterator[None]:
    """Restores the random generators after the body."""
    state = get_random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)
