"""The states of random generators are restored exactly."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models.training.data import (
    preserved_random_state,
    random_tensors,
    seed_all,
    set_random_tensors,
)

CPU = torch.device("cpu")


def draws() -> list[float]:
    """Gaussians too, because the generators of Python and numpy store every second one."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.normal(),
        torch.rand(()).item(),
        torch.randn(()).item(),
    ]


@given(seed=st.integers(0, 2**62), before=st.integers(0, 3))
def test_draws_repeat_after_restoring(seed: int, before: int) -> None:
    seed_all(seed, 0, 0)
    for _ in range(before):
        draws()
    tensors = random_tensors(CPU)
    expected = [draws() for _ in range(3)]
    set_random_tensors(tensors, CPU)
    assert [draws() for _ in range(3)] == expected


def test_draws_inside_preserved_random_state_are_not_noticed() -> None:
    seed_all(0, 0, 0)
    expected = draws()
    seed_all(0, 0, 0)
    with preserved_random_state(CPU):
        draws()
    assert draws() == expected


def test_processes_and_steps_draw_differently() -> None:
    seen = set()
    for words in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]:
        seed_all(*words)
        seen.update(draws())
    assert len(seen) == 4 * 6
