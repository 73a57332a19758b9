"""liblinattn draws the tokens of Python from one file, and refuses files that are not whole."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from linattn_models import (
    AutoregressiveTransformer,
    ByteTokenizer,
    Categorical,
    CharacterTokenizer,
    Linear,
    MixtureOfLogistics,
    Transformer,
    TransformerConfig,
    export_decoder,
    load_decoder,
)
from tests.library.linattn_library import FILE, Failed, Model

SMALL = TransformerConfig(num_layers=2, num_heads=2, head_dim=8, ffn_dim=24)
LANGUAGE = TransformerConfig.language(num_layers=2, num_heads=4, head_dim=8)


def model_of(config: TransformerConfig, head: Any, **options: Any) -> AutoregressiveTransformer:
    torch.manual_seed(0)
    model = AutoregressiveTransformer(config, head, **options).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(torch.randn_like(x) * 0.3)  # so that no two logits are close
    return model


MODELS: dict[str, AutoregressiveTransformer] = {
    "categorical": model_of(SMALL, Categorical(11), max_length=64),
    "rotary, window": model_of(replace(LANGUAGE, attention=Linear(window_size=5)), Categorical(19)),
    "decay": model_of(
        replace(SMALL, attention=Linear(decay="learned")), Categorical(7), max_length=64
    ),
    "colors": model_of(
        SMALL, MixtureOfLogistics(levels=16, num_mixtures=2, channels=3), max_length=32
    ),
}


def exported(folder: Path, name: str, weights: str = "float32") -> Path:
    file = folder / "model.linattn"
    export_decoder(MODELS[name], file, weights)
    return file


@settings(max_examples=30, deadline=None)
@given(
    temperature=st.sampled_from([0.0, 5e-324, 1e-30, 0.5, 1.0, 1.7, 1e30]),
    top_k=st.integers(0, 20) | st.just(2**63 - 1),
    top_p=st.sampled_from([0.0, 5e-324, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 5e-324, 0.1, 1.0]),
    penalty=st.sampled_from([1e-30, 1.0, 1.3, 1e30]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_settings_of_a_draw(
    tmp_path_factory: pytest.TempPathFactory,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    seed: int,
) -> None:
    file = exported(tmp_path_factory.mktemp("shipped"), "rotary, window")
    wanted = load_decoder(file).generate(
        prefix=torch.tensor([[1, 2, 3, 4, 5, 6, 7]]), max_new_tokens=25, seeds=seed,
        temperature=temperature,
        top_k=top_k or None, top_p=top_p or None, min_p=min_p or None, repetition_penalty=penalty,
    )  # fmt: skip
    model = Model(file)
    ours = model.generate(
        model.new_state(), [1, 2, 3, 4, 5, 6, 7], 25, seed=seed, temperature=temperature,
        top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty,
    )  # fmt: skip
    assert ours[0] == wanted[0, -25:].tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan), ("temperature", math.inf), ("temperature", -1e-9),
        ("top_p", -0.1), ("top_p", 2), ("top_p", math.nan), ("min_p", 1.1), ("top_k", -1),
        ("repetition_penalty", 0.0), ("repetition_penalty", math.inf),
        ("sample", -1), ("sample", 2**32 - 1), ("sample", 2**63 - 1),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(tmp_path: Path, name: str, value: float) -> None:
    model = Model(exported(tmp_path, "categorical"))
    with pytest.raises(Failed, match=f"^{name}: expected") as failed:
        model.generate(model.new_state(2), [1, 1], 3, rows=2, **{name: value})
    assert len(str(failed.value)) < 100


def test_text(tmp_path: Path) -> None:
    model = model_of(SMALL, Categorical(4), max_length=64)
    model.tokenizer = CharacterTokenizer("aé\n🙂")
    export_decoder(model, tmp_path / "model.linattn")
    ours = Model(tmp_path / "model.linattn")
    assert ours.c.linattn_metadata(ours.handle, b"tokenizer") == b"characters"
    text = "é🙂a\n".encode()
    out = (ctypes.c_int32 * 10)()
    assert ours.c.linattn_encode(ours.handle, text, len(text), out, 10) == 4
    assert out[:4] == [1, 3, 0, 2]
    assert ours.c.linattn_encode(ours.handle, b"x", 1, out, 10) == -1
    assert load_decoder(tmp_path / "model.linattn").tokenizer == model.tokenizer


def test_characters_that_are_not_unicode_are_refused(tmp_path: Path) -> None:
    model = model_of(SMALL, Categorical(2), max_length=64)
    model.tokenizer = CharacterTokenizer("a\ud800")
    with pytest.raises(ValueError, match="the tokenizer: expected Unicode"):
        export_decoder(model, tmp_path / "model.linattn")


def test_bytes(tmp_path: Path) -> None:
    model = model_of(LANGUAGE, Categorical(256))
    model.tokenizer = ByteTokenizer()
    export_decoder(model, tmp_path / "model.linattn")
    ours, text = Model(tmp_path / "model.linattn"), "é\0\n".encode() + b"\xff"
    out = (ctypes.c_int32 * 10)()
    assert ours.c.linattn_encode(ours.handle, text, len(text), out, 10) == len(text)
    assert bytes(out[: len(text)]) == text
    assert isinstance(load_decoder(tmp_path / "model.linattn").tokenizer, ByteTokenizer)


def test_refusals(tmp_path: Path) -> None:
    file = exported(tmp_path, "categorical")
    model = Model(file)
    for call, words in [
        (lambda: model.generate(model.new_state(), [11], 3), "tokens"),
        (lambda: model.generate(model.new_state(), [1], 100), "64 positions"),
        (lambda: Model(tmp_path / "none"), "a file that can be read"),
        (lambda: Model(b""), "fewer than 8 bytes"),
    ]:
        with pytest.raises(Failed, match=words):
            call()
    other = Model(exported(tmp_path, "decay"))
    state = model.new_state()
    model.read(state, [1], 1)
    with pytest.raises(Failed, match="other weights"):
        other.load_state(model.save_state(state))


def test_nothing_in_place_of_an_argument_is_refused(tmp_path: Path) -> None:
    model = Model(exported(tmp_path, "categorical"))
    c, handle, state, out = model.c, model.handle, model.new_state(), (ctypes.c_int32 * 4)()
    model.read(state, [1], 1)
    before, sampling = model.save_state(state), c.linattn_defaults()
    for result in (
        c.linattn_open(None, 1), c.linattn_open_bytes(None, 99, 1),
        c.linattn_open_bytes(b"123456789", -1, 1), c.linattn_state_new(None, 1),
        c.linattn_state_new(handle, -1), c.linattn_state_copy(None),
        c.linattn_state_load(None, before, len(before)), c.linattn_state_load(handle, None, 9),
        c.linattn_state_load(handle, before, len(before) - 1), c.linattn_decode(None, 0, None),
    ):  # fmt: skip
        assert result is None
        assert b": expected " in c.linattn_error()
    for result in (
        c.linattn_describe(None, None), c.linattn_describe(handle, None),
        c.linattn_state_save(None, None, 0), c.linattn_read(None, out, 1),
        c.linattn_read(state, None, 1), c.linattn_read(state, out, -1),
        c.linattn_read_vectors(state, None, 1, None), c.linattn_sample(None, sampling, out),
        c.linattn_sample(state, None, out), c.linattn_sample(state, sampling, None),
        c.linattn_generate(None, None, 0, sampling, 1, None, 0, out, None),
        c.linattn_generate(state, None, 1, sampling, 1, None, 0, out, None),
        c.linattn_generate(state, None, 0, None, 1, None, 0, out, None),
        c.linattn_generate(state, None, 0, sampling, -1, None, 0, out, None),
        c.linattn_generate(state, None, 0, sampling, 1, None, 0, None, None),
        c.linattn_generate(state, None, 0, sampling, 1, None, 1, out, None),
        c.linattn_encode(None, b"a", 1, out, 4), c.linattn_encode(handle, None, 1, out, 4),
    ):  # fmt: skip
        assert result == -1
        assert b": expected " in c.linattn_error()
    assert model.save_state(state) == before
    assert c.linattn_state_rows(None) == 0 and not c.linattn_parameters(None)
    assert c.linattn_metadata(None, b"format") == c.linattn_metadata(handle, None) == b""
    c.linattn_state_free(None), c.linattn_close(None)


def test_threads_share_a_model(tmp_path: Path) -> None:
    model = Model(exported(tmp_path, "rotary, window"), threads=2)

    def draw(seed: int) -> list[list[int]]:
        state = model.new_state(3)
        with pytest.raises(Failed, match=f"got {-1 - seed}[.]$"):
            model.generate(state, [1] * 3, 1, rows=3, top_k=-1 - seed)
        return model.generate(state, [1] * 3, 40, rows=3, seed=seed)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(draw, range(12))) == list(map(draw, range(12)))


def test_damaged_files_are_refused_or_harmless(tmp_path: Path) -> None:
    file = exported(tmp_path, "rotary, window", "int8")
    content = file.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    generator = torch.Generator().manual_seed(0)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(1 + draw(3)):
            damaged[draw(size)] = draw(256)
        file.write_bytes(damaged[: len(damaged) - draw(3)])
        drawn: list[list[int]] = []
        with suppress(Failed):
            model = Model(file)
            drawn += model.generate(model.new_state(), [1, 2], 5)
        with suppress(ValueError):
            tokens = load_decoder(file).generate(prefix=[[1, 2]], max_new_tokens=5, seeds=0)
            drawn += tokens[:, 2:].tolist()
        assert len(drawn) < 2 or drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": "3"}, {"num_heads": "0"}, {"levels": "10"}, {"head_dim": "99999999999"},
        {"choices": "9"}, {"weights": "int4"}, {"version": "2"}, {"eps": "nan"}, {"tokens": "no"},
        {"max_length": "65"}, {"rotary": "true"}, {"window_size": "3"}, {"hidden": "1"},
        {"feature_map": "hedgehog"}, {"num_features": "4"}, {"head": "other"}, {"eps": "-1"},
        {"norm_eps": "-1"}, {"window_size": "-5"}, {"num_kv_heads": "0"}, {"channels": "0"},
    ],
    ids=str,
)  # fmt: skip
def test_metadata_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    file = exported(tmp_path, "categorical")
    change_metadata(file, lambda metadata: metadata | change)
    with pytest.raises(Failed, match="expected"):
        Model(file.read_bytes())
    with pytest.raises(ValueError, match="expected"):
        load_decoder(file)


@pytest.mark.parametrize("name", ["categorical", "rotary, window"])
def test_tensors_of_another_shape_are_refused(tmp_path: Path, name: str) -> None:
    file = exported(tmp_path, name)
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata()
        tensors = {each: content.get_tensor(each) for each in content.keys()}  # noqa: SIM118
    for each, x in tensors.items():
        for other in (x.new_ones(()), x.new_ones(0), x.unsqueeze(0)):
            save_file({**tensors, each: other}, file, metadata)
            with pytest.raises(Failed, match="expected"):
                Model(file)
            with pytest.raises(ValueError, match="expected"):
                load_decoder(file)


def test_a_window_has_a_bound(tmp_path: Path) -> None:
    """Each state has room for it, whatever the tensors are."""
    file = exported(tmp_path, "rotary, window")
    change_metadata(file, lambda metadata: {**metadata, "window_size": "1048577"})
    with pytest.raises(Failed, match="window_size"):
        Model(file)
    with pytest.raises(ValueError, match="window_size"):
        load_decoder(file)


def test_a_state_of_more_rows_than_bytes_takes_no_memory(tmp_path: Path) -> None:
    model = Model(exported(tmp_path, "categorical"))
    content = safetensors.torch.save(
        {"position": torch.zeros(1 << 20, dtype=torch.int64)},
        {"format": "linattn decoding state", "version": "1"},
    )
    with pytest.raises(Failed, match="the state: expected 1152 bytes for each of 1048576 rows"):
        model.load_state(content)


def test_a_state_whose_parameters_do_not_fit_is_refused(tmp_path: Path) -> None:
    model = Model(exported(tmp_path, "categorical"))
    state = model.new_state(2)
    model.read(state, [1, 2], 1)
    content = model.save_state(state)
    tensors = safetensors.torch.load(content)
    metadata = {"format": "linattn decoding state", "version": "1"}
    for wrong in (torch.zeros(2, 0), torch.zeros(1, 11), torch.zeros(2, 11).bfloat16()):
        saved = safetensors.torch.save({**tensors, "parameters": wrong}, metadata)
        with pytest.raises(Failed, match="'parameters': expected F32"):
            model.load_state(saved)


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    content = exported(tmp_path, "categorical").read_bytes()
    start, end = re.findall(rb'"data_offsets":\[(\d+),(\d+)\]', content)[-2]
    shared = re.sub(
        rb'"data_offsets":\[%s,%s\]' % (start, end),
        lambda found: b'"data_offsets":[0,%d]' % (int(end) - int(start)) + b" " * 9,
        content,
    )
    with pytest.raises(Failed, match="expected"):
        Model(shared)


def test_a_text_of_pixels_is_refused(tmp_path: Path) -> None:
    """A token of three values has no text: a prompt would be read beyond its end."""
    head = MixtureOfLogistics(levels=256, num_mixtures=2, channels=3)
    model = model_of(SMALL, head, max_length=32)
    export_decoder(model, tmp_path / "model.linattn")
    change_metadata(tmp_path / "model.linattn", lambda metadata: {**metadata, "tokenizer": "bytes"})
    with pytest.raises(Failed, match="the tokenizer: expected"):
        Model(tmp_path / "model.linattn")


def test_words_of_a_file_are_cut_and_harmless_on_a_terminal(tmp_path: Path) -> None:
    file = exported(tmp_path, "categorical")
    change_metadata(file, lambda metadata: {**metadata, "eps": "\x1b[2J\n" * 10_000})
    with pytest.raises(Failed) as failed:
        Model(file)
    assert len(str(failed.value)) < 500 and str(failed.value).isprintable()


def test_numbers_are_read_in_every_locale(tmp_path: Path) -> None:
    """A program may have set one with another decimal point."""
    file, names = exported(tmp_path, "colors"), tmp_path / "de_DE.UTF-8"
    if shutil.which("localedef") is None:
        pytest.skip("no localedef")
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", names], capture_output=True)
    if not names.exists():
        pytest.skip(f"localedef made no German locale: {made.stderr!r}")
    program = (
        "import ctypes, locale, sys; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8');"
        "assert locale.localeconv()['decimal_point'] == ',';"
        "c = ctypes.CDLL(sys.argv[1]); c.linattn_open.restype = ctypes.c_void_p;"
        "sys.exit(0 if c.linattn_open(sys.argv[2].encode(), 1) else 1)"
    )
    environment = {**os.environ, "LOCPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, FILE, file], env=environment, check=True)


@pytest.mark.parametrize("kind", [Transformer, AutoregressiveTransformer])
@pytest.mark.parametrize(
    "sizes",
    [
        {"head_dim": 4},
        {"num_heads": 1},
        {"num_kv_heads": 1},
        {"ffn_dim": 3},
        {"norm_first": False},
        {"num_layers": 1},
    ],
    ids=str,
)
def test_a_configuration_of_another_model_is_refused(
    tmp_path: Path, kind: type, sizes: dict[str, int]
) -> None:
    model: Any = MODELS["categorical"]
    export_decoder(
        model if kind is AutoregressiveTransformer else model.transformer, tmp_path / "m"
    )

    def change(metadata: dict[str, str]) -> dict[str, str]:
        config = json.loads(metadata["config"])
        config["transformer"] |= sizes
        return {**metadata, "config": json.dumps(config)}

    change_metadata(tmp_path / "m", change)
    with pytest.raises(ValueError, match="as its config says"):
        load_decoder(tmp_path / "m")


def change_metadata(file: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = change(header["__metadata__"])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
