"""Every global random generator that a training step may draw from, as tensors, per process."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy
import torch
from torch import Tensor

from linattn_models.training.data import derived_seed


def seed_all(seed: int, step: int, process: int) -> None:
    """Seeds torch (every device), Python and numpy from the run's seed, a step and a process."""
    mixed = derived_seed("draws", seed, step, process)
    torch.manual_seed(mixed)
    random.seed(mixed)
    numpy.random.seed(mixed)


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators of torch's CPU and `device`, of Python and of numpy, each 1-D."""
    tensors = {"torch": torch.get_rng_state(), "python": _python_state(), "numpy": _numpy_state()}
    if device.type != "cpu":
        tensors["device"] = torch.get_device_module(device).get_rng_state()
    return tensors


def set_random_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Puts back what `random_tensors` returned."""
    torch.set_rng_state(tensors["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(tensors["device"])
    *words, has_gauss, gauss = tensors["python"].tolist()
    random.setstate((3, tuple(words), _float_from_bits(gauss) if has_gauss else None))
    *keys, position, has_gauss, gauss = tensors["numpy"].tolist()
    numpy.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": numpy.array(keys, dtype=numpy.uint32), "pos": position},
            "has_gauss": has_gauss,
            "gauss": _float_from_bits(gauss),
        }
    )


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Puts the generators back to where they stood before the body."""
    tensors = random_tensors(device)
    try:
        yield
    finally:
        set_random_tensors(tensors, device)


def _python_state() -> Tensor:
    _, words, gauss = random.getstate()
    return torch.tensor([*words, int(gauss is not None), _bits_of_float(gauss or 0.0)])


def _numpy_state() -> Tensor:
    state = numpy.random.get_state(legacy=False)
    keys, position = state["state"]["key"].tolist(), state["state"]["pos"]
    return torch.tensor([*keys, position, state["has_gauss"], _bits_of_float(state["gauss"])])


def _bits_of_float(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float_from_bits(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
