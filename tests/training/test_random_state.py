"""The states of random generators are restored exactly."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models.training.random_state import (
    derive_seed,
    get_random_state,
    seed_all,
    set_random_state,
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
    state = get_random_state(CPU)
    expected = [draws() for _ in range(3)]
    set_random_state(state, CPU)
    assert [draws() for _ in range(3)] == expected


def test_processes_and_steps_draw_differently() -> None:
    seen = set()
    for words in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]:
        seed_all(*words)
        seen.update(draws())
    assert len(seen) == 4 * 6


def test_derived_seeds_keep_their_arguments_apart() -> None:
    seeds = {derive_seed("a", 1, 23), derive_seed("a", 12, 3), derive_seed("b", 1, 23)}
    assert len(seeds) == 3
