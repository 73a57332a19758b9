"""What experiments should cost: operations and bytes counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.measure.machine import Limits
from pixels.presets import PRESETS as RECIPES
from replication.cost import CIFAR10, MNIST, PROCESS, Cost, Model, on_gpu
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


def test_a_gpu_searches_batches_that_double() -> None:
    cost = on_gpu(TINY, {"softmax": 5}, 9, whole=False)

    searched = sum(TINY.generating("softmax", batch, 3).operations for batch in (1, 2, 4))
    timed = sum(TINY.generating("softmax", batch, 9).operations for batch in (5, 1))
    assert cost.operations == pytest.approx(searched + timed)
    assert cost.memory == PROCESS + 4 * TINY.parameters


def test_a_whole_image_costs_all_positions_where_a_state_is_kept() -> None:
    some, whole = (on_gpu(TINY, {"linear": 1}, 5, whole=whole) for whole in (False, True))
    rerun = [on_gpu(TINY, {"softmax": 1}, 5, whole=whole) for whole in (False, True)]

    once = TINY.generating("linear", 1).operations
    assert whole.operations - some.operations == pytest.approx(2 * once / 2)
    assert rerun[0] == rerun[1]


@pytest.mark.parametrize("name", ["mnist", "bits-mnist", "bits-cifar10"])
def test_batches_are_those_of_the_commands(name: str) -> None:
    dataset = "cifar10" if name == "bits-cifar10" else "mnist"
    for preset in ("laptop", "paper"):
        training = RECIPES[preset](dataset).training
        _, samples, batch = EXPERIMENTS[name].trains[preset]
        assert batch == training.batch_size
        assert preset == "laptop" or samples == training.steps * batch


def test_a_gpus_benchmark_is_not_a_cpus() -> None:
    for name in ("generation-mnist", "generation-cifar10"):
        here, there = (EXPERIMENTS[x].expected_cost("laptop") for x in (name, f"{name}-cuda"))
        assert there.operations > 10 * here.operations


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_cost_and_a_command(name: str, preset: PresetName) -> None:
    experiment = EXPERIMENTS[name]

    assert experiment.expected_cost(preset).operations > 0
    assert all("{out}" in command for command in experiment.commands(preset))
