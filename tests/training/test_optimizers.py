"""Optimizers: their state survives being written out by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from linattn_models.training.optimization import (
    build_optimizer,
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
    load_optimizer_tensors(twin_optimizer, twin_parameters, tensors, "there")
    update(model, optimizer, 3)
    update(twin, twin_optimizer, 3)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))


def test_frozen_parameters_are_left_out() -> None:
    model = toy_model()
    model[0].requires_grad_(False)
    assert not any(name.startswith("0.") for name in trainable_parameters(model))
    with pytest.raises(ValueError, match="a parameter that requires a gradient"):
        trainable_parameters(model.requires_grad_(False))


@pytest.mark.parametrize(
    ("key", "shape", "sentence"),
    [
        ("9.weight/exp_avg", (8, 4), "there holds '9.weight/exp_avg', for which the model has no"),
        ("0.weight/exp_avg", (4, 8), r"of shape \(4, 8\), the model's parameter has \(8, 4\)"),
    ],
)
def test_state_that_fits_no_parameter_is_refused(
    key: str, shape: tuple[int, ...], sentence: str
) -> None:
    _, parameters, optimizer = make("radam")
    with pytest.raises(ValueError, match=sentence):
        load_optimizer_tensors(optimizer, parameters, {key: torch.zeros(shape)}, "there")
