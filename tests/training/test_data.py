"""The order of examples: every epoch sees each once, whatever the batch size, from any step on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_models.basics.memory import lacks_memory
from linattn_models.training import train
from linattn_models.training.data import ExampleOrder
from tests.training.toy import DESCRIBE, ToyData, toy_config, toy_loss, toy_model

sizes = {"examples": st.integers(1, 30), "batch_size": st.integers(1, 40)}


@given(**sizes, seed=st.integers(0, 2**40), epochs=st.integers(1, 4))
def test_each_epoch_is_a_permutation(
    examples: int, batch_size: int, seed: int, epochs: int
) -> None:
    order = ExampleOrder(examples, batch_size, seed)
    steps = -(-epochs * examples // batch_size)
    stream = torch.cat([order.indices(step) for step in range(steps)])
    for epoch in stream[: epochs * examples].split(examples):
        assert epoch.sort().values.tolist() == list(range(examples))


@given(**sizes, steps=st.lists(st.integers(0, 50), min_size=1))
def test_a_batch_depends_on_nothing_but_seed_and_step(
    examples: int, batch_size: int, steps: list[int]
) -> None:
    walked = ExampleOrder(examples, batch_size, seed=1)
    for step in steps:
        fresh = ExampleOrder(examples, batch_size, seed=1).indices(step)
        assert fresh.shape == (batch_size,)
        assert torch.equal(walked.indices(step), fresh)


def test_seeds_and_epochs_differ_in_order() -> None:
    orders = [ExampleOrder(50, 50, seed).indices(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_no_example_is_refused() -> None:
    with pytest.raises(ValueError, match="data"):
        ExampleOrder(0, 4, 0)


class Growing:
    """The first step + 1 examples: no two batches have the same size."""

    def indices(self, step: int) -> Tensor:
        return torch.arange(step + 1)


class Watched(ToyData):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        self.batches.append(indices.tolist())
        return super().batch(indices)


def test_updates_take_the_examples_of_the_order(tmp_path: Path) -> None:
    def run(steps: int, resume: bool) -> list[list[int]]:
        data = Watched()
        train(
            toy_model(),
            data,
            loss=toy_loss,
            config=toy_config(steps=steps),
            order=Growing(),
            out=tmp_path / "run",
            describe=DESCRIBE,
            model_config={},
            resume=resume,
        )
        return data.batches

    assert run(3, resume=False) == [[0], [0, 1], [0, 1, 2]]
    assert run(4, resume=True) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("batch_size", [10**15, 2 * 10**18])
def test_a_batch_that_no_memory_can_hold_fails_at_once(batch_size: int) -> None:
    with pytest.raises(RuntimeError) as caught:
        ExampleOrder(3, batch_size, 0).indices(0)
    assert lacks_memory(caught.value)
