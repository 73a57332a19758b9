"""A loaded model equals the saved one; files that do not fit are refused in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from linattn_core import feature_map_names, get_feature_map, register_feature_map
from linattn_core.feature_maps import random_features, registry
from linattn_core.feature_maps.elementwise import Elementwise
from linattn_models import (
    AutoregressiveTransformer,
    Linear,
    Lsh,
    MixtureOfLogistics,
    compile_decoder,
    load,
    read_config,
    save,
)
from linattn_models.layers.block import Block
from linattn_models.saving import Model
from linattn_models.weights import model_files
from tests.models.decoding.decoders import needs_cpu_backend
from tests.models.saved import change_config, change_weights
from tests.models.tiny import random_tokens, tiny_config, tiny_model, tiny_transformer

MODELS: dict[str, Callable[[], Model]] = {
    "linear": tiny_model,
    "softmax, colors": lambda: tiny_model(
        "softmax", MixtureOfLogistics(2, 3, 8), "sinusoidal", norm_first=False
    ),
    "bfloat16": lambda: tiny_model(feature_map="hedgehog").float().bfloat16(),
    "an encoder, a random map": lambda: tiny_transformer(
        feature_map="favor", feature_map_options={"num_features": 6}, is_causal=False
    ),
    "no positions, fixed decay": lambda: tiny_model(
        positions="none", num_kv_heads=1, decay="fixed"
    ),
    "tied": lambda: tiny_model(norm="rms", ffn="swiglu", bias=False, tie_embeddings=True),
    "learned decay": lambda: tiny_model(decay="learned"),
    "window, gated decay": lambda: tiny_model("windowed", decay="gated"),
    "hashes": lambda: tiny_model(Lsh(rounds=2, buckets=4, chunk=3)),
    "softmax, grouped heads": lambda: tiny_model("softmax", num_kv_heads=1),
    **{
        f"with {name}": lambda name=name: tiny_model(feature_map=name)  # type: ignore[misc]
        for name in feature_map_names()
    },
    "endless": lambda: (
        AutoregressiveTransformer(tiny_config(), 7, None, "sinusoidal").double().eval()
    ),
    # Lengths that no tensor has.
    "softmax, in blocks": lambda: tiny_transformer("softmax", causal_block=50_000),
    "a long window": lambda: tiny_transformer(Linear(window_size=50_000)),
    "long, no positions": lambda: AutoregressiveTransformer(
        tiny_config(), 7, 50_000, "none"
    ).eval(),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_round_trips(make: Callable[[], Model], tmp_path: Path) -> None:
    model = make()
    save(model, tmp_path / "a" / "model")
    loaded = load(tmp_path / "a" / "model")
    assert type(loaded) is type(model) and loaded.to_dict() == model.to_dict()
    assert not loaded.training
    state = loaded.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor) and state[name].dtype == tensor.dtype
    trainable = {name for name, p in loaded.named_parameters() if p.requires_grad}
    assert trainable == {name for name, p in model.named_parameters() if p.requires_grad}
    if isinstance(model, AutoregressiveTransformer):
        assert isinstance(loaded, AutoregressiveTransformer)
        tokens = random_tokens(model, 2, 5)
        assert torch.equal(loaded.loss(tokens), model.loss(tokens))


def test_tied_weights_are_saved_as_two(tmp_path: Path) -> None:
    model = tiny_model()
    model.output.weight = model.embeddings[0].weight
    save(model, tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").output.weight, model.output.weight)


def test_the_folder_holds_two_files_and_what_was_added(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(tiny_model(), folder, extra={"dataset": "digits", "step": 3})
    assert sorted(x.name for x in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    config = read_config(folder)
    assert config["extra"] == {"dataset": "digits", "step": 3}
    assert config["format_version"] == 2 and config["model"] == "AutoregressiveTransformer"


def test_saving_replaces_files_inside_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("n" * 245)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    monkeypatch.chdir(folder)
    for model in (tiny_model(), tiny_model("softmax")):
        save(model, ".")
        assert load(".").to_dict() == load(folder).to_dict() == model.to_dict()
    files = {"config.json", "model.safetensors", "notes.txt"}
    assert {x.name for x in Path.cwd().iterdir()} == files
    assert (folder / "notes.txt").read_text() == "mine"


def test_what_is_no_model_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"config\.json: expected the configuration of a saved"):
        save(tiny_model(), tmp_path)
    with pytest.raises(ValueError, match="expected a folder, got a file"):
        save(tiny_model(), tmp_path / "config.json")
    assert [x.name for x in tmp_path.iterdir()] == ["config.json"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    before = tiny_model()
    save(before, folder)

    def fill_up(tensors: dict[str, Tensor], path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files, "save_file", fill_up)
    with pytest.raises(OSError, match="No space left"):
        save(tiny_model("softmax"), folder)
    with pytest.raises(OSError, match="No space left"):
        save(tiny_model("softmax"), tmp_path / "other")
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert len(list(folder.iterdir())) == 2
    assert load(folder).to_dict() == before.to_dict()


@pytest.mark.parametrize("extra", [{"a": object()}, {"a": float("nan")}])
def test_extra_that_is_not_json_is_refused(extra: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="extra"):
        save(tiny_model(), tmp_path / "model", extra=extra)
    assert list(tmp_path.iterdir()) == []


def test_other_modules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a known name, got 'Linear'"):
        save(torch.nn.Linear(2, 2), tmp_path / "model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"linattn_models\.Transformer"):
        save(torch.nn.Transformer(8, 2, 1, 1, 8, batch_first=True), tmp_path / "model")  # type: ignore[arg-type]


@needs_cpu_backend
@pytest.mark.parametrize("make", [tiny_model, tiny_transformer])
def test_a_compiled_decoder_is_refused_with_what_to_save(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    for weights, said in (
        ("int8", "save its model with weights='int8' and read that with load_decoder."),
        ("float32", "save its model and read that with load_decoder."),
    ):
        decoder = compile_decoder(make().float(), weights)
        with pytest.raises(ValueError, match=f"model: expected a model, got a Compiled.*; {said}"):
            save(decoder, tmp_path / "model")  # type: ignore[arg-type]


Change = Callable[[dict[str, Any]], object]


def drop(key: str) -> Change:
    return lambda config: config.pop(key)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (drop("start"), "start"),
        (lambda t: t.update(more=torch.zeros(2)), "more"),
        (lambda t: t.update(start=t["start"][:-1].clone()), "start"),
        (lambda t: t.update(start=t["start"].long()), "start"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Change, name: str, tmp_path: Path) -> None:
    save(tiny_model(), tmp_path)
    change_weights(tmp_path, change)
    with pytest.raises(ValueError, match=name):
        load(tmp_path)


def test_other_weights_than_those_that_were_saved_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save(tiny_model(), tmp_path / folder)
    weights = load_file(tmp_path / "b" / "model.safetensors")
    weights["start"] += 1
    save_file(weights, tmp_path / "a" / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: expected .* sha256"):
        load(tmp_path / "a")
    change_config(tmp_path / "a", drop("sha256"))  # as of another program
    assert load(tmp_path / "a").start.equal(weights["start"])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda c: c.update(num_layer=3), "num_layer"),
        (lambda c: c["transformer"].update(num_layer=3), "num_layer"),
        (lambda c: c["transformer"].update(num_layers=3), "num_layers: expected at most 2"),
        (lambda c: c["transformer"].update(ffn_dim=13), "another configuration"),
        # Each size alone fits the file, and their product does not.
        (lambda c: c["transformer"].update(num_heads=10**3, head_dim=10**3), "another config"),
        (lambda c: c["transformer"].update(attention="sofmax"), "sofmax"),
        (lambda c: c["transformer"].update(feature_map_options={"x": 1}), "describes no model"),
        (lambda c: c.update(max_length="9"), "max_length"),
        (lambda c: c.update(transformer=[]), "a mapping"),
        (lambda c: c["head"].update(kind="cat"), "head"),
        (lambda c: c.update(format_version=1), "format_version"),
        (drop("format_version"), "format_version"),
        (lambda c: c.update(model="LSTM"), "LSTM"),
        (drop("head"), "head"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    change: Change, name: str, tmp_path: Path
) -> None:
    save(tiny_model(), tmp_path / "model")
    change_config(tmp_path / "model", change)
    with pytest.raises(ValueError, match=name) as refusal:
        load(tmp_path / "model")
    assert "\n" not in str(refusal.value)


ABSURD = 10**6
HUGE = 10**30


def favor(features: int) -> Change:
    options = {"feature_map": "favor", "feature_map_options": {"num_features": features}}
    return lambda c: c["transformer"]["attention"].update(options)


def lsh(**sizes: int) -> Change:
    return lambda c: c["transformer"].update(attention={"kind": "lsh", **sizes})


SOFTMAX = {"kind": "softmax", "past_size": 2 * ABSURD}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda c: c["transformer"].update(num_layers=HUGE), "num_layers"),
        (lambda c: c["transformer"].update(num_heads=ABSURD), "another configuration"),
        (lambda c: c["transformer"].update(head_dim=20_000), "another configuration"),
        (lambda c: c["head"].update(vocabulary=ABSURD), "another configuration"),
        (lambda c: c.update(max_length=HUGE), "describes no model"),
        (favor(2_000_000), "another configuration"),
        (favor(HUGE), "num_features|describes no model"),
        (lambda c: c["transformer"]["attention"].update(window_size=10**9), "window_size"),
        (lsh(rounds=1000), "missing"),
        (lsh(buckets=2 * ABSURD), "buckets: expected at most"),
        (lsh(chunk=2 * ABSURD), "chunk: expected at most"),
        (lambda c: c["transformer"].update(attention=SOFTMAX), "past_size: expected at most"),
        (lambda c: c["transformer"].update(attention="\x1b[2J" * 10**4), "attention"),
        (lambda c: c.update(model="x" * 10**5), "model"),
    ],
)
def test_absurd_configurations_are_refused_before_anything_is_drawn(
    change: Change, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tiny_model(feature_map="favor"), tmp_path / "model")
    change_config(tmp_path / "model", change)
    drawn = []
    monkeypatch.setattr(random_features, "_orthogonal_gaussian", lambda *_: drawn.append(1))
    layers: list[int] = []
    monkeypatch.setattr(Block, "__init__", counting(Block.__init__, layers))
    with pytest.raises(ValueError, match=name) as refusal:
        load(tmp_path / "model")
    assert len(str(refusal.value)) < 700 and str(refusal.value).isprintable()
    assert not drawn and len(layers) <= 7


def counting(init: Callable[..., None], calls: list[int]) -> Callable[..., None]:
    def count(*arguments: Any, **settings: Any) -> None:
        calls.append(1)
        init(*arguments, **settings)

    return count


def test_loading_draws_nothing_and_keeps_the_random_state(tmp_path: Path) -> None:
    model = tiny_model(feature_map="favor")
    save(model, tmp_path)
    state = torch.get_rng_state()
    again = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(x.is_meta for x in (*again.parameters(), *again.buffers()))


def test_a_feature_map_with_tensors_beside_the_weights_is_built_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(Elementwise):
        def __init__(self, head_dim: int) -> None:
            super().__init__("elu")
            self.scale = torch.full((head_dim,), 2.0)

    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    register_feature_map("scaled", Scaled)
    model = tiny_model(feature_map="scaled")
    save(model, tmp_path)
    assert load(tmp_path).transformer.blocks[0].mixer.feature_map.scale.eq(2).all()


def test_a_large_option_of_a_registered_feature_map_is_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    register_feature_map("seeded", lambda head_dim, seed: get_feature_map("elu", head_dim))
    model = tiny_model(feature_map="seeded", feature_map_options={"seed": 20240607})
    save(model, tmp_path)
    assert load(tmp_path).to_dict() == model.to_dict()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"\xff\xfe"),
        ("config.json", b"[]"),
        ("model.safetensors", b""),
        ("model.safetensors", b"8"),
    ],
)
def test_files_that_are_damaged_or_absent_are_named(
    name: str, content: bytes, tmp_path: Path
) -> None:
    save(tiny_model(), tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(name)):
        load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        load(tmp_path)


def test_saving_through_a_link_replaces_what_it_points_to(tmp_path: Path) -> None:
    save(tiny_transformer(), tmp_path / "folder")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    changed = tiny_transformer()
    with torch.no_grad():
        changed.norm.bias.add_(1)
    save(changed, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert torch.equal(load(tmp_path / "folder").norm.bias, changed.norm.bias)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]
