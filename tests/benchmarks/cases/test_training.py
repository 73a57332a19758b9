"""A training step: each method is held to the gradients of our model, and counted rightly."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import training
from benchmarks.cases.models import Task
from tests.benchmarks.helpers import QUICK, make_or_skip

TASK = Task(batch=2).for_settings(QUICK)


@pytest.mark.parametrize(
    "name", [training.LINEAR_CPU, training.SDPA, training.ALONE, training.ATTENTION]
)
def test_a_step_is_right_and_can_be_repeated(name: str) -> None:
    made = make_or_skip(training.setup(QUICK)[name])
    assert made.check() is None
    made.run()
    made.run()


def test_a_layer_that_is_wrong_is_told_by_its_gradients() -> None:
    ours = training.make_trainable("linear", TASK)
    wrong = copy.deepcopy(ours)
    with torch.no_grad():
        wrong.transformer.blocks[1].contract.weight.mul_(1.01)
    assert training.fault(ours, ours) is None
    assert "float64 oracle" in str(training.fault(wrong, ours))


def test_operations_are_those_of_the_layers_products() -> None:
    """By torch's own count of the products alone, and of a step, which has more than those."""
    model = training.make_trainable("linear", TASK)
    with FlopCounterMode(display=False) as step:
        model.loss(torch.zeros(TASK.batch, TASK.length, dtype=torch.int64)).backward()
    with FlopCounterMode(display=False) as products:
        training._products(TASK).run()
    positions = TASK.batch * TASK.length
    output = training.PRODUCTS * 2 * positions * model.output.weight.numel()
    counts = step.get_flop_counts()["Global"]
    attention = sum(count for name, count in counts.items() if str(name).startswith("linattn"))
    assert training.operations(TASK) == step.get_total_flops() - output - attention
    assert training.operations(TASK) == products.get_total_flops()
