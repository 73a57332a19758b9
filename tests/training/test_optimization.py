"""The state of optimizers is saved as named tensors; schedules give the documented rates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from linattn_models.training.optimization import (
    build_optimizer,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
    trainable_parameters,
)
from tests.training.toy import ToyData, toy_config, toy_loss, toy_model


def make(name: str) -> tuple[nn.Module, dict[str, nn.Parameter], torch.optim.Optimizer]:
    model = toy_model(dropout=0.0)
    parameters = trainable_parameters(model)
    config = toy_config(optimizer=name, weight_decay=0.01)
    return model, parameters, build_optimizer(config, parameters)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, times: int) -> None:
    data = ToyData()
    for step in range(times):
        optimizer.zero_grad()
        toy_loss(model, data.batch(torch.arange(step, step + 4))).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("radam", torch.optim.RAdam), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_state_goes_through_named_tensors_exactly(name: str, expected: type) -> None:
    model, parameters, optimizer = make(name)
    assert type(optimizer) is expected
    update(model, optimizer, 7)
    tensors = {key: t.clone() for key, t in optimizer_tensors(optimizer, parameters).items()}
    assert {key.rpartition("/")[0] for key in tensors} == set(parameters)

    twin, twin_parameters, twin_optimizer = make(name)
    twin.load_state_dict(model.state_dict())
    load_optimizer_tensors(twin_optimizer, twin_parameters, tensors)
    update(model, optimizer, 3)
    update(twin, twin_optimizer, 3)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_one_pass_over_each_tensor_computes_the_same(name: str) -> None:
    model, parameters, optimizer = make(name)
    twin, twin_parameters, _ = make(name)
    twin.load_state_dict(model.state_dict())
    settings = {x: optimizer.defaults[x] for x in ("lr", "betas", "weight_decay")}
    separate = type(optimizer)(twin_parameters.values(), **settings, fused=False)
    assert optimizer.defaults["fused"]
    for each, by in ((model, optimizer), (twin, separate)):
        update(each, by, 5)
    for ours, theirs in zip(parameters.values(), twin_parameters.values(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_frozen_parameters_are_left_out() -> None:
    model = toy_model()
    model[0].requires_grad_(False)
    assert not any(name.startswith("0.") for name in trainable_parameters(model))
    with pytest.raises(ValueError, match="expected a parameter that requires a gradient"):
        trainable_parameters(model.requires_grad_(False))


def test_a_parameter_without_a_gradient_so_far_begins_with_zeros() -> None:
    model, parameters, optimizer = make("adamw")
    tensors = optimizer_tensors(optimizer, parameters)
    twin, twin_parameters, twin_optimizer = make("adamw")
    load_optimizer_tensors(twin_optimizer, twin_parameters, tensors)
    update(model, optimizer, 3)
    update(twin, twin_optimizer, 3)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))


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
