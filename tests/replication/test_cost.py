"""What experiments should cost: operations and bytes counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.measure.machine import Limits
from replication.cost import CIFAR10, MNIST, Cost, Model
from replication.experiments import EXPERIMENTS, PRESETS, PresetName

TINY = Model(layers=1, heads=2, head_dim=4, ffn=16, positions=10)


def test_operations_of_a_forward_pass() -> None:
    products = 2 * 10 * (4 * 8 * 8 + 2 * 8 * 16)

    assert TINY.forward("linear") == products + 10 * 4 * 2 * 4 * 4
    assert TINY.forward("softmax") == products + 10 * 4 * (10 / 2) * 8


def test_rerunning_costs_every_prefix() -> None:
    assert TINY.generating("softmax", 1).operations == sum(
        TINY.forward("softmax", n) for n in range(1, 11)
    )
    half = TINY.generating("softmax", 3, steps=5)
    assert half.operations == pytest.approx(1.5 * TINY.generating("softmax", 1).operations)


def test_bytes_of_state_are_those_that_models_measure() -> None:
    assert MNIST.state("linear") == 270_336
    assert CIFAR10.state("linear") == 540_672
    assert MNIST.state("stateful-softmax") == 12_845_056
    assert MNIST.state("softmax") == 0


def test_seconds_are_those_of_both_rates() -> None:
    limits = Limits(gemm_float32=2e9, gemm_bfloat16=None, copy_bandwidth=1e9)

    assert Cost(4e9, 3e9).seconds(limits) == 5.0
    assert Cost(1.0, 2.0, 5e9) + Cost(3.0, 4.0, 7e9) == Cost(4.0, 6.0, 7e9)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_cost_and_a_command(name: str, preset: PresetName) -> None:
    experiment = EXPERIMENTS[name]

    assert experiment.expected_cost(preset).operations > 0
    assert all("{out}" in command for command in experiment.commands(preset))
