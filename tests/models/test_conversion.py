"""Files of earlier versions load: configurations and weights, of models and of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from linattn_models import (
    AutoregressiveTransformer,
    Linear,
    Lsh,
    Softmax,
    load,
    read_config,
    save,
)
from linattn_models.attention import Attention
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


def to_format_1(folder: Path) -> None:
    """Rewrites a saved transformer as format 1 had it.

    Two matrices of each block are transposed, and the fields of all attentions stand beside the
    attention's name.
    """
    config = json.loads((folder / "config.json").read_text())
    fields = config["transformer"]
    attention = fields.pop("attention")
    defaults = Lsh().to_dict() | Linear().to_dict() | attention
    for name in ("rounds", "buckets", "chunk"):
        fields[f"lsh_{name}"] = defaults[name]
    for name in ("feature_map", "feature_map_options", "eps"):
        fields[name] = defaults[name]
    fields["attention"] = attention["kind"]
    config["format_version"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, x in tensors.items():
        if name.endswith(TRANSPOSED):
            tensors[name] = x.t().contiguous()
    save_file(tensors, path)


@pytest.mark.parametrize(
    "attention", [Linear("relu", 1e-3), Linear("hedgehog"), Softmax(), Lsh(2, 4, 3)]
)
@pytest.mark.parametrize("ffn_dim", [8, 12])  # with 8 the matrix of the network is square
def test_a_folder_of_format_1_loads(attention: Attention, ffn_dim: int, tmp_path: Path) -> None:
    model = tiny_model(attention, ffn_dim=ffn_dim)
    save(model, tmp_path / "model", extra={"step": 3})
    to_format_1(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.to_dict() == model.to_dict()
    assert read_config(tmp_path / "model")["extra"] == {"step": 3}
    for (name, x), (_, again) in zip(
        model.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert torch.equal(x, again), name
    save(loaded, tmp_path / "model")
    assert load(tmp_path / "model").to_dict() == model.to_dict()


def test_transposed_weights_in_todays_format_are_refused(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "model")
    config = (tmp_path / "model" / "config.json").read_text()
    to_format_1(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"expected shape \(24, 8\), got shape \(8, 24\)"):
        load(tmp_path / "model")


def test_configurations_that_came_before_groups_and_decays_load(tmp_path: Path) -> None:
    model = tiny_model(positions="sinusoidal")
    save(model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    for name in ("num_kv_heads", "causal_block"):
        del config["transformer"][name]
    del config["transformer"]["attention"]["decay"]
    path.write_text(json.dumps(config))
    loaded = load(tmp_path / "model")
    assert loaded.to_dict() == model.to_dict()
    assert "positions.table" in load_file(tmp_path / "model" / "model.safetensors")


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
