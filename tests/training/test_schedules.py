"""Learning rates: what the schedules promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_models.training.optimization import learning_rate
from tests.training.toy import toy_config


@given(step=st.integers(0, 99), warmup=st.integers(1, 50))
def test_warm_up_rises_linearly_to_the_full_rate(step: int, warmup: int) -> None:
    config = toy_config(steps=100, warmup_steps=warmup)
    expected = config.learning_rate * min(1.0, (step + 1) / warmup)
    assert learning_rate(config, step) == pytest.approx(expected)


@given(steps=st.integers(2, 60), data=st.data())
def test_cosine_falls_from_the_full_rate_towards_zero(steps: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, steps - 1))
    config = toy_config(steps=steps, schedule="cosine", warmup_steps=warmup)
    rates = [learning_rate(config, step) for step in range(warmup, steps)]
    assert rates[0] == pytest.approx(config.learning_rate)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    assert learning_rate(config, steps) == pytest.approx(0)
    half = warmup + (steps - warmup) // 2
    if (steps - warmup) % 2 == 0:
        assert learning_rate(config, half) == pytest.approx(config.learning_rate / 2)


@given(step=st.integers(0, 99), drop_at=st.integers(1, 99))
def test_step_drops_once(step: int, drop_at: int) -> None:
    config = toy_config(steps=100, schedule="step", drop_at=drop_at, drop_factor=0.3)
    factor = 1.0 if step < drop_at else 0.3
    assert learning_rate(config, step) == pytest.approx(config.learning_rate * factor)
