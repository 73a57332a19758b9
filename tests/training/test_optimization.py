"""The optimizer of a run comes back exactly; schedules give the documented rates."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from linattn_models.training import Updater, make_accelerator
from linattn_models.training.schedule import learning_rate
from tests.training.toy import ToyData, toy_config, toy_loss, toy_model

CLASSES = {"radam": torch.optim.RAdam, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_updater(optimizer: str, model: nn.Module | None = None) -> Updater:
    config = toy_config(optimizer=optimizer, weight_decay=0.01)
    model = toy_model(dropout=0.0) if model is None else model
    return Updater(make_accelerator(config), model, ToyData(), toy_loss, config)


def update(updater: Updater, times: int) -> None:
    for step in range(times):
        updater.update(step)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("before", [0, 7])
def test_the_state_of_the_optimizer_comes_back_exactly(name: str, before: int) -> None:
    first, second = make_updater(name), make_updater(name)
    assert type(first.optimizer) is CLASSES[name]
    assert bool(first.optimizer.defaults.get("fused")) is (name != "radam")
    update(first, before)
    second.model.load_state_dict(first.model.state_dict())
    second.set_state(copy.deepcopy(first.get_state()), before)
    update(first, 3)
    update(second, 3)
    for ours, theirs in zip(first.parameters.values(), second.parameters.values(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_state_of_other_parameters_is_refused() -> None:
    frozen = toy_model()
    frozen[0].requires_grad_(False)
    with pytest.raises(ValueError, match="optimizer"):
        make_updater("adam", frozen).set_state(make_updater("adam").get_state(), 0)


def test_frozen_parameters_are_left_out() -> None:
    model = toy_model()
    model[0].requires_grad_(False)
    assert not any(name.startswith("0.") for name in make_updater("adam", model).parameters)
    with pytest.raises(ValueError, match="model"):
        make_updater("adam", model.requires_grad_(False))


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


@given(steps=st.integers(2, 99), longer=st.integers(0, 99))
def test_the_trapezoid_is_constant_until_its_last_fifth(steps: int, longer: int) -> None:
    config, other = (toy_config(steps=n, schedule="trapezoid") for n in (steps, steps + longer))
    rates = [learning_rate(config, step) for step in range(steps)]
    level = steps - config.cooldown
    assert rates[: level + 1] == [config.learning_rate] * (level + 1)
    falls = [rate / config.learning_rate for rate in rates[level:]]
    assert falls == pytest.approx([1 - k / len(falls) for k in range(len(falls))])
    assert learning_rate(config, steps) == 0
    # Until then a run's rates do not depend on how long it will be.
    assert rates[:level] == [learning_rate(other, step) for step in range(level)]


@given(step=st.integers(0, 99), drop_at=st.integers(1, 99))
def test_step_drops_once(step: int, drop_at: int) -> None:
    config = toy_config(steps=100, schedule="step", drop_at=drop_at, drop_factor=0.3)
    factor = 1.0 if step < drop_at else 0.3
    assert learning_rate(config, step) == pytest.approx(config.learning_rate * factor)
