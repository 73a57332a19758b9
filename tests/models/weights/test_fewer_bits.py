"""Weights saved in fewer bits: rounded once, small, and the same decoder as the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from linattn_models import (
    AutoregressiveTransformer,
    compile_decoder,
    load,
    load_decoder,
    save,
)
from linattn_models.saving import Model
from tests.models.saved import change_weights
from tests.models.tiny import random_tokens, tiny_config, tiny_model, tiny_transformer


def linears(model: Model) -> set[str]:
    return {f"{name}.weight" for name, x in model.named_modules() if isinstance(x, nn.Linear)}


@pytest.mark.parametrize(("weights", "error"), [("bfloat16", 2**-8), ("int8", 1 / 253)])
def test_fewer_bits_are_rounded_once(weights: str, error: float, tmp_path: Path) -> None:
    model = tiny_model().float()
    with torch.no_grad():
        model.transformer.blocks[0].contract.weight[1] = 0.0
    save(model, tmp_path / "once", {"name": "x"}, weights)
    once = load(tmp_path / "once")
    save(once, tmp_path / "twice", {"name": "x"}, weights)
    state, again = once.state_dict(), load(tmp_path / "twice").state_dict()
    for name, x in model.state_dict().items():
        assert torch.equal(state[name], again[name]) and state[name].dtype == torch.float32
        if name in linears(model):
            largest = x.abs() if weights == "bfloat16" else x.abs().amax(1, keepdim=True)
            assert ((state[name] - x).abs() <= error * largest).all()
        else:
            assert torch.equal(state[name], x)


def test_a_tied_matrix_is_rounded_with_its_embedding(tmp_path: Path) -> None:
    pytest.importorskip("linattn_cpu", reason="the backend that compiles decoders is not installed")
    model = AutoregressiveTransformer(tiny_config(tie_embeddings=True), 40, 16).eval()
    save(model, tmp_path, weights="int8")
    loaded, decoder = load(tmp_path), load_decoder(tmp_path)
    assert not torch.equal(loaded.embeddings[0].weight, model.embeddings[0].weight)
    tokens = random_tokens(model, 3, 8)
    (logits, state), (expected, _) = decoder.prefill(tokens), loaded.prefill(tokens)
    # The decoder may also round activations to 8 bits.
    assert (logits - expected).norm() <= 0.02 * expected.norm()
    loaded.step(tokens[:, 0], state)  # one fingerprint


def test_weights_between_two_integers_become_those_of_the_decoder(tmp_path: Path) -> None:
    pytest.importorskip("linattn_cpu", reason="the backend that compiles decoders is not installed")
    model = tiny_model().float()
    with torch.no_grad():
        for layer in (x for x in model.modules() if isinstance(x, nn.Linear)):
            largest = layer.weight.abs().amax(1, keepdim=True)
            halves = ((layer.weight / largest * 127).floor() + 0.5) * largest / 127
            layer.weight.copy_(halves.clamp(-largest, largest))
    save(model, tmp_path, weights="int8")
    tokens = random_tokens(model, 3, 8)
    expected, _ = compile_decoder(model, "int8").prefill(tokens)
    assert torch.equal(load_decoder(tmp_path).prefill(tokens)[0], expected)


@pytest.mark.parametrize("weights", [None, "bfloat16", "int8"])
def test_a_loaded_decoder_is_the_one_of_the_model(weights: str | None, tmp_path: Path) -> None:
    pytest.importorskip("linattn_cpu", reason="the backend that compiles decoders is not installed")
    model = AutoregressiveTransformer(tiny_config(num_heads=3, ffn_dim=50), 40, 16).eval()
    save(model, tmp_path / "model", weights=weights)
    loaded = load_decoder(tmp_path / "model")
    decoder = compile_decoder(model, weights or "float32")
    assert loaded.weights == decoder.weights
    tokens = random_tokens(model, 3, 8)
    logits, state = loaded.prefill(tokens)
    expected, other = decoder.prefill(tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    logits, _ = loaded.step(tokens[:, 0], state)
    torch.testing.assert_close(logits, decoder.step(tokens[:, 0], other)[0], rtol=1e-6, atol=1e-6)


def test_fewer_bits_take_fewer_bytes(tmp_path: Path) -> None:
    model = tiny_transformer(num_heads=8, head_dim=16, ffn_dim=512).float()
    sizes = []
    for weights in (None, "bfloat16", "int8"):
        save(model, tmp_path / "model", weights=weights)
        sizes.append((tmp_path / "model" / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.55 * sizes[0] and sizes[2] < 0.3 * sizes[0]


def remove_largest(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if "largest" in name]:
        del tensors[name]


def test_fewer_bits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weights"):
        save(tiny_model().float(), tmp_path / "model", weights="int4")
    with pytest.raises(TypeError, match="float64"):
        save(tiny_model(), tmp_path / "model", weights="int8")
    assert not (tmp_path / "model").exists()
    save(tiny_model().float(), tmp_path / "model", weights="int8")
    change_weights(tmp_path / "model", remove_largest)
    with pytest.raises(ValueError, match="int8"):
        load(tmp_path / "model")
    save(tiny_model("softmax"), tmp_path / "model")
    with pytest.raises(ValueError, match="causal linear attention"):
        load_decoder(tmp_path / "model")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", 3.5])
def test_a_device_that_is_not_there(tmp_path: Path, device: Any) -> None:
    save(tiny_model().float(), tmp_path / "model")
    with pytest.raises(ValueError, match="device: expected 'cpu', or a CUDA GPU"):
        load_decoder(tmp_path / "model", device=device)
