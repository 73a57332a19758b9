"""An application may choose the examples of each update."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from linattn_models.training import train
from tests.training.toy import DESCRIBE, ToyData, toy_config, toy_loss, toy_model


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
