"""characters.py and sentences.py as their user runs them: what they leave and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra [transformers]")

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, BertConfig, BertModel, PreTrainedTokenizerFast

from linattn_models.huggingface import load_converted
from tests.apps.app_scripts import Script

WORDS = ["linear", "attention", "keeps", "a", "state", "of", "fixed", "size", "softmax", "grows"]
SMALL = ["--steps", 2, "--width", 16, "--features", 4, "--window", 3, "--tokens", 10]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Different sentences of these words, 30 kB."""
    path = tmp_path / "text.txt"
    pairs = ((x, y, z) for x in WORDS for y in WORDS for z in WORDS)
    path.write_text(" ".join(f"The {x} is {y} or {z}, as ever." for x, y, z in pairs))
    return path


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """The folder of an untrained encoder and its tokenizer."""
    folder = tmp_path / "encoder"
    names = ["[PAD]", "[UNK]", *WORDS]
    known = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(names), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


# peft asks transformers by the older of two names.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_characters_leaves_numbers_tables_and_a_model(
    script: Script, text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="LoRA needs peft")
    out = tmp_path / "results"

    process = script("characters", *SMALL, "--text", text, "--out", out)

    assert process.code == 0, process.stderr
    record, table = json.loads((out / "results.json").read_text()), (out / "table.md").read_text()
    assert record["settings"]["tune"] == ["whole", "lora"]
    assert len(record["nats"]) == 5
    # Guessing costs log(256) = 5.5 nats a byte.
    assert all(f"{nats:.3f}" in table and 4 < nats < 6 for nats in record["nats"].values())
    assert len(record["transfer_errors"]) == 1
    assert all(x > 0 for pair in record["step_milliseconds"].values() for x in pair)
    assert table in process.stdout
    tokens = torch.tensor([list(b"linear")])
    converted = AutoModelForCausalLM.from_pretrained(out / "converted")
    assert converted.model.config.attention.window_size == 3
    assert converted(tokens).logits.shape == (1, 6, 256)


def test_sentences_leaves_numbers_a_table_and_a_model(
    script: Script, text: Path, encoder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results"
    flags = ["--model", encoder, "--text", text, "--steps", 4, "--features", 8, "--out", out]

    process = script("sentences", *flags)

    assert process.code == 0, process.stderr
    record = json.loads((out / "results.json").read_text())
    assert record["sentences"] == 1000
    assert len(record["cosines"]) == 3
    mean, _ = record["cosines"]["after 2 more steps, whole"]
    assert f"{mean:.3f}" in (out / "table.md").read_text()
    assert all(-1 <= least <= mean <= 1.001 for mean, least in record["cosines"].values())
    assert record["settings"]["model"] == "encoder"
    assert load_converted(out / "converted").config.linattn_features == 8


@pytest.mark.parametrize(
    ("name", "flags", "named"),
    [
        ("characters", ["--threads", 0], "--threads"),
        ("characters", ["--width", 12], "--width"),
        ("characters", ["--features", 3], "--features"),
        ("characters", ["--window", -1], "--window"),
        ("characters", ["--text", "short"], "--text"),
        ("sentences", ["--model", ".", "--text", "short"], "--text"),
    ],
)
def test_bad_input_is_refused_by_name(
    script: Script,
    name: str,
    flags: list[object],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("too short")
    process = script(name, *flags)
    assert process.code == 2 and named in process.stderr
