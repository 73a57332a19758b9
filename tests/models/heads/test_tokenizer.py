"""Tokenizers: text in prompts, text of tokens, and saved with the model."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import (
    AutoregressiveTransformer,
    ByteTokenizer,
    CharacterTokenizer,
    MixtureOfLogistics,
    load,
    load_decoder,
    save,
)
from linattn_models.decoding import ContinuousBatch, Request
from linattn_models.heads.tokenizer import decode_tokens, encode_text
from tests.models.decoding.decoders import needs_cpu_backend
from tests.models.saved import change_config
from tests.models.tiny import tiny_config, tiny_model, tiny_transformer

TEXT = "a bad cab"
TABLE = " abcdef"  # as many as the vocabulary of a tiny model


def characters() -> CharacterTokenizer:
    return CharacterTokenizer(TABLE)


def words() -> Any:
    """A tokenizer of the library with tokens of several characters, and a special one."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {x: token for token, x in enumerate(["a", "b", "c", "ab", "Ġ", "d"])}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[("a", "b")])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    made.post_processor = tokenizers.processors.TemplateProcessing("$A <end>", None, [("<end>", 6)])
    return made


@given(st.binary() | st.text().filter(lambda x: x.isprintable()).map(str.encode))
def test_a_tokenizer_of_bytes_gives_back_every_byte(content: bytes) -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(content)
    assert tokenizer.to_bytes(tokens) == content
    text = decode_tokens(tokenizer, tokens)
    assert text == content.decode(errors="replace")
    if text.encode() == content:
        assert encode_text(tokenizer, text) == tokens


def test_a_tokenizer_of_bytes_is_saved_with_its_model(tmp_path: Path) -> None:
    model = tiny_model(head=256)
    model.tokenizer = ByteTokenizer()
    save(model, tmp_path)
    loaded = load(tmp_path)
    assert loaded.tokenizer == ByteTokenizer() != characters()
    assert loaded.generate(prefix="é", length=2).tolist() == [[0xC3, 0xA9]]


@pytest.mark.parametrize("wrong", [[256], [-1], ["a"], "abc"])
def test_what_is_no_byte_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="tokens: expected"):
        ByteTokenizer().to_bytes(wrong)
    with pytest.raises(ValueError, match="surrogate"):
        ByteTokenizer().encode("\ud800")


tokenizers_of_both_kinds = pytest.mark.parametrize("make", [characters, words])


@tokenizers_of_both_kinds
def test_text_is_encoded_and_decoded(make: Callable[[], Any]) -> None:
    model, tokenizer = tiny_model(), make()
    model.tokenizer = tokenizer
    tokens = encode_text(tokenizer, TEXT)
    assert decode_tokens(tokenizer, tokens) == TEXT
    assert model.decode(tokens) == model.decode(torch.tensor(tokens)) == TEXT
    assert model.decode(torch.tensor(tokens[0])) == decode_tokens(tokenizer, tokens[:1])
    assert model.decode(torch.tensor([[*tokens, -1], [-1] * (len(tokens) + 1)])) == [TEXT, ""]
    assert model.decode([tokens, [], torch.tensor([-1, tokens[0]])]) == [
        TEXT, "", decode_tokens(tokenizer, tokens[:1])
    ]  # fmt: skip
    assert model.decode([]) == ""
    fields: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 1}
    for prefix, same in (("cab", ["cab"]), (["a", "", "bad"], ["a", "", "bad"])):
        expected = model.generate(prefix=[encode_text(tokenizer, x) for x in same], **fields)
        assert torch.equal(model.generate(prefix=prefix, **fields), expected)


@tokenizers_of_both_kinds
def test_a_tokenizer_is_saved_with_its_model(make: Callable[[], Any], tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), make()
    save(model, tmp_path / "one", tokenizer=tokenizer)
    assert model.tokenizer is None
    model.tokenizer = tokenizer
    save(model, tmp_path / "other")
    for folder in ("one", "other"):
        loaded = load(tmp_path / folder)
        assert loaded.to_dict() == model.to_dict()
        assert encode_text(loaded.tokenizer, TEXT) == encode_text(tokenizer, TEXT)
        assert loaded.decode(encode_text(tokenizer, TEXT)) == TEXT
    save(tiny_model(), tmp_path / "one")
    assert load(tmp_path / "one").tokenizer is None
    assert not (tmp_path / "one" / "tokenizer.json").exists()
    (tmp_path / "one" / "tokenizer.json").write_text("of another program")
    save(tiny_model(), tmp_path / "one")
    assert (tmp_path / "one" / "tokenizer.json").exists()


@needs_cpu_backend
def test_a_decoder_has_the_tokenizer_of_its_model(tmp_path: Path) -> None:
    model = tiny_model().float()
    save(model, tmp_path, weights="int8", tokenizer=characters())
    decoder = load_decoder(tmp_path)
    assert decoder.tokenizer == characters()
    assert decoder.decode(decoder.generate(prefix="bad", length=3)) == ["bad"]


def expected_end(tokenizer: Any, tokens: list[int], strings: list[str]) -> int:
    """The tokens up to the first with which the whole text contains one of the strings."""
    for count in range(1, len(tokens) + 1):
        text = decode_tokens(tokenizer, tokens[:count])
        if any(string in text for string in strings):
            return count
    return len(tokens)


@tokenizers_of_both_kinds
@pytest.mark.parametrize("decoder", ["eager", pytest.param("compiled", marks=needs_cpu_backend)])
@pytest.mark.parametrize("strings", [["cab", "add"], ["ba"], ["eeee", "<end>"]], ids=str)
def test_rows_end_where_their_text_has_a_stop_string(
    make: Callable[[], Any], decoder: str, strings: list[str]
) -> None:
    tokenizer = make()
    model = AutoregressiveTransformer(tiny_config(), 7, positions="none").eval()
    model.tokenizer = tokenizer
    fields: dict[str, Any] = {"prefix": ["cab", "", "a", "ca"], "max_new_tokens": 90}
    fields |= {"decoder": decoder, "seeds": range(4)}
    whole = list(model.stream(**fields))
    streamed = torch.stack(list(model.stream(stop_strings=strings, **fields)), 1)
    tokens, state = model.generate(stop_strings=strings, return_state=True, **fields)
    for row, drawn in enumerate(torch.stack(whole, 1).tolist()):
        end = expected_end(tokenizer, drawn, strings)
        assert streamed[row].tolist() == drawn[:end] + [-1] * (streamed.shape[1] - end)
        known = len(encode_text(tokenizer, fields["prefix"][row]))
        own = tokens[row][tokens[row] >= 0].tolist()
        assert own[known:] == drawn[:end]
        assert int(state.cursor.rows(4)[row]) == len(own) + 1
    one = model.generate(stop_strings=strings[0], **fields)
    assert torch.equal(one, model.generate(stop_strings=strings[:1], **fields))


class Killed(BaseException):
    """Ends a save without its clean-up, as SIGKILL does."""


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_a_killed_save_leaves_a_model_with_its_own_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    tables = {"old": TABLE, "new": TABLE[::-1]}
    models = {name: tiny_model() for name in tables}
    for name, model in models.items():
        model.tokenizer = CharacterTokenizer(tables[name])
    save(models["old"], tmp_path)
    calls, replace = iter(range(9)), Path.replace

    def rename_or_die(path: Path, target: Path) -> Path:
        if next(calls) == renames:
            raise Killed
        return replace(path, target)

    def check(name: str) -> None:
        loaded = load(tmp_path)
        assert torch.equal(loaded.start, models[name].start)
        assert loaded.tokenizer == models[name].tokenizer

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", rename_or_die)
        patch.setattr(shutil, "rmtree", lambda *_, **options: None)
        if renames < 3:
            with pytest.raises(Killed):
                save(models["new"], tmp_path)
        else:
            save(models["new"], tmp_path)
    check("new" if renames else "old")
    save(models["old"], tmp_path)
    check("old")


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    small, right, large = (CharacterTokenizer(x) for x in ("abc", TABLE, TABLE + "g"))
    model = tiny_model()
    for other in (small, large):
        for call in (
            lambda other=other: setattr(model, "tokenizer", other),
            lambda other=other: save(model, tmp_path / "model", tokenizer=other),
        ):
            with pytest.raises(
                ValueError, match=rf"tokenizer: expected one of 7 .* of {len(other)}"
            ):
                call()
    assert model.tokenizer is None and not list(tmp_path.iterdir())
    unfit = tiny_model(head=9), tiny_model(head=MixtureOfLogistics(2, 1, 7)), tiny_transformer()
    for wrong in unfit:
        with pytest.raises(ValueError, match="tokenizer"):
            save(wrong, tmp_path / "model", tokenizer=right)
    for nothing in ("text", object()):
        with pytest.raises(TypeError, match="tokenizer"):
            model.tokenizer = nothing


# The library panics on reading it: its prefix is longer than its merges.
PANICS = json.dumps(
    {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "model": {
            "type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
            "continuing_subword_prefix": "longer",
        },
    }
)  # fmt: skip


def saved_with(folder: Path, content: bytes | None) -> None:
    """A model whose tokenizer another program has written."""
    save(tiny_model(), folder, tokenizer=characters())
    if content is None:
        (folder / "tokenizer.json").unlink()
        return
    (folder / "tokenizer.json").write_bytes(content)
    change_config(folder, lambda config: config.update(tokenizer_sha256=sha256_of(content)))


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{}",
        b'{"characters": "abc"}',
        b'{"characters": "aabbccd"}',
        b'{"characters": 5}',
        b'{"bytes": 7}',
        PANICS.encode(),
    ],
)
def test_tokenizers_that_are_damaged_or_absent_are_refused(
    content: bytes | None, tmp_path: Path
) -> None:
    saved_with(tmp_path, content)
    with pytest.raises(ValueError, match=re.escape("tokenizer.json")) as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)


def test_another_tokenizer_than_was_saved_is_refused(tmp_path: Path) -> None:
    saved_with(tmp_path, b'{"characters": "abcdefg"}')
    change_config(tmp_path, lambda config: config.update(tokenizer_sha256="0"))
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load(tmp_path)


def test_without_the_library_its_tokenizers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tiny_model(), tmp_path, tokenizer=words())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match=r"tokenizer\.json: .*pip install tokenizers"):
        load(tmp_path)


@pytest.mark.parametrize("table", ["", "aba", ["a", "bc"], [1]])
def test_tables_that_cannot_be_right_are_refused(table: Any) -> None:
    with pytest.raises(ValueError, match="characters"):
        CharacterTokenizer(table)


@pytest.mark.parametrize("setting", ["truncation", "padding", "dropout"])
def test_no_setting_of_a_tokenizer_changes_a_prompt(setting: str, tmp_path: Path) -> None:
    """One that is set is refused; what a file sets is left out."""
    model, tokenizer = tiny_model(), words()
    model.tokenizer = tokenizer
    tokens = encode_text(tokenizer, TEXT)
    if setting == "truncation":
        tokenizer.enable_truncation(2)
    elif setting == "padding":
        tokenizer.enable_padding(length=20)
    else:
        tokenizer.model.dropout = 1.0
    for call in (
        lambda: encode_text(tokenizer, TEXT),
        lambda: setattr(model, "tokenizer", tokenizer),
        lambda: save(model, tmp_path / "refused"),
    ):
        with pytest.raises(ValueError, match=rf"^tokenizer: .* without {setting}, "):
            call()
    saved_with(tmp_path, tokenizer.to_str().encode())
    assert encode_text(load(tmp_path).tokenizer, TEXT) == tokens


def test_failures_of_the_library_are_one_sentence() -> None:
    """It raises Exception itself, and panics are not even that."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {x: token for token, x in enumerate("abcdefg")}
    model = tiny_model()
    model.tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "unknown"))
    for call in (model.generate, model.perplexity):
        with pytest.raises(ValueError, match=r"^text: expected one that .* can encode"):
            call("x") if call == model.perplexity else call(prefix="x")
    model.tokenizer.decoder = tokenizers.decoders.Strip("a", 0, 5)
    with pytest.raises(ValueError, match=r"^tokens: expected some that .* can decode"):
        model.decode([0])
    batch = ContinuousBatch(model, 2)
    stopped = batch.add(Request([0], 5, stop_strings="x"))
    other = batch.add(Request([0], 5))
    ends = {x.request: x.finish_reason for _ in range(9) for x in batch.step() if x.finish_reason}
    assert ends == {stopped: "abort", other: "length"}


@tokenizers_of_both_kinds
def test_a_text_that_is_no_unicode_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"^text: expected .*, got .*ud800"):
        encode_text(make(), "a\ud800")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda m: m.generate(prefix="abg"), "text"),
        (lambda m: m.generate(prefix=["ab", [1]]), "prefix"),
        (lambda m: tiny_model().generate(prefix="ab"), "prefix"),
        (lambda m: tiny_model().decode([1]), "decode"),
        (lambda m: tiny_model().generate(stop_strings="a"), "stop_strings"),
        (lambda m: m.generate(stop_strings=["a", ""]), "stop_strings"),
        (lambda m: m.stream(stop_strings=[1]), "stop_strings"),
        (lambda m: m.decode([1, 7]), "tokens"),
        (lambda m: m.decode([1.5]), "tokens"),
        (lambda m: m.decode("ab"), "tokens"),
        (lambda m: m.decode([[[1], [1, 2]]]), "tokens"),
        (lambda m: m.decode([[1], [7]]), "tokens"),
        (lambda m: m.decode([1, [2]]), "tokens"),
        (lambda m: m.tokenizer.decode([7]), "tokens"),
        (lambda m: m.tokenizer.decode([-1]), "tokens"),
    ],
)
def test_text_that_has_no_tokens_is_refused(
    call: Callable[[AutoregressiveTransformer], object], name: str
) -> None:
    model = tiny_model()
    model.tokenizer = characters()
    with pytest.raises((ValueError, TypeError), match=f"^{name}: expected"):
        call(model)
