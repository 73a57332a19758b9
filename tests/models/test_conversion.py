"""Configurations and weights of format 1 load, from folders of models and of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from linattn_models import AutoregressiveTransformer, Lsh
from linattn_models.conversion import weights_from_format_1
from tests.models.tiny import random_tokens, tiny_model

TRANSPOSED = ("mixer.qkv.weight", "expand.weight")


def transpose(model: AutoregressiveTransformer) -> None:
    """Gives a model's parameters the shapes of format 1; it no longer runs."""
    for block in model.transformer.blocks:
        for layer in (block.mixer.qkv, block.expand):  # type: ignore[union-attr]
            layer.weight = nn.Parameter(layer.weight.detach().t().contiguous())  # type: ignore[union-attr]


@pytest.mark.parametrize("attention", ["linear", "softmax", Lsh(1, 2, 2)])
@pytest.mark.parametrize("ffn_dim", [3, 8, 20])
def test_weights_are_transposed_once(attention: Lsh | str, ffn_dim: int) -> None:
    model = tiny_model(attention, ffn_dim=ffn_dim)
    today = {name: x.clone() for name, x in model.state_dict().items()}
    transpose(model)
    converted = weights_from_format_1(model.state_dict())
    for weights in (converted, weights_from_format_1(converted)):
        assert weights.keys() == today.keys()
        assert all(torch.equal(weights[name], x) for name, x in today.items())


def test_weights_of_other_models_are_left_alone() -> None:
    weights = {
        "mixer.qkv.weight": torch.randn(3),
        "expand.weight": torch.randn(2, 3),
        "blocks.0.mixer.qkv.weight": torch.randn(2, 5),
        "blocks.0.expand.weight": torch.randn(4),
    }
    converted = weights_from_format_1(weights)
    shapes = [tuple(x.shape) for x in converted.values()]
    assert shapes == [(3,), (2, 3), (5, 2), (4,)]


def test_a_checkpoint_of_format_1_loads(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="training needs the extra [train]")
    from linattn_models.training import RunFolder, TensorData, TrainingConfig, train

    model = tiny_model().float()
    described = model.to_dict()
    tokens = random_tokens(model, 4, 5)
    transpose(model)

    def loss(trained: nn.Module, batch: Tensor) -> Tensor:
        return sum((p.square().sum() for p in trained.parameters()), torch.zeros(()))

    train(
        model,
        TensorData(tokens),
        loss=loss,
        config=TrainingConfig(steps=1, batch_size=2, learning_rate=1e-3),
        out=tmp_path / "run",
        describe={"app": "a", "preset": "p", "dataset": "d", "attention": "linear"},
        model_config=described,
    )
    run = RunFolder(tmp_path / "run")
    record = run.checkpoint_folder(1) / "training.json"
    written = json.loads(record.read_text())
    del written["sha256"]  # format 1 had none
    record.write_text(json.dumps({**written, "format_version": 1}))
    today = AutoregressiveTransformer.from_dict(run.config()["model"])
    assert run.load_weights(today) == 1
    for name, x in model.state_dict().items():
        expected = x.t() if name.endswith(TRANSPOSED) else x
        assert torch.equal(today.state_dict()[name], expected.cpu()), name
