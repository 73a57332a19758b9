"""The text of new tokens, and stop strings in it, for every kind of decoder and every cut."""

from __future__ import annotations

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
    ContinuousBatch,
    DecodingState,
    Request,
    SamplingParams,
)
from linattn_models.decoding.stopping import RowStop, Stop
from linattn_models.decoding.texts import TextParts, contexts_of
from linattn_models.heads.tokenizer import decode_tokens
from linattn_models.state import NOTHING, UNKNOWN, remember
from tests.models.decoding.decoders import run_batch
from tests.models.tiny import tiny_config

tokenizers = pytest.importorskip("tokenizers")
DECODERS = tokenizers.decoders


def words(vocabulary: list[str], decoder: Any) -> Any:
    table = {word: token for token, word in enumerate(["<unk>", *vocabulary])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, "<unk>"))
    made.decoder = decoder
    made.add_special_tokens(["<unk>"])
    return made


def characters() -> CharacterTokenizer:
    return CharacterTokenizer(" abc.")


def metaspace() -> Any:
    return words(["▁the", "▁cat", "s", "▁", "▁▁a", "."], DECODERS.Metaspace())


def wordpiece() -> Any:
    return words(["the", "cat", "##s", ".", "##at", "n't"], DECODERS.WordPiece())


def suffixes() -> Any:
    return words(["the</w>", "cat", "s</w>", ".</w>"], DECODERS.BPEDecoder())


def spaces() -> Any:
    return words(["the", "cat", "."], None)


def llama() -> Any:
    replace, strip = DECODERS.Replace("▁", " "), DECODERS.Strip(" ", 1, 0)
    parts = [replace, DECODERS.ByteFallback(), DECODERS.Fuse(), strip]
    bytes_of_characters = [f"<0x{byte:02X}>" for byte in range(256)]
    text = ["▁the", "▁cat", "s", "▁", "▁▁", "é"]
    return words([*text, *bytes_of_characters], DECODERS.Sequence(parts))


def byte_level() -> Any:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return words([*alphabet, "Ġcat", "Ã©a"], DECODERS.ByteLevel())


def spell(tokenizer: Any, text: str) -> list[int]:
    """The tokens of the bytes of a text."""
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer.encode(text)
    table = tokenizer.get_vocab()
    if "<0x00>" in table:
        return [table[f"<0x{byte:02X}>"] for byte in text.encode()]
    pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [table[x] for word, _ in pre.pre_tokenize_str(text) for x in word]


WORDS = [characters, metaspace, wordpiece, suffixes, spaces]
BYTES = [llama, byte_level, ByteTokenizer]


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Any, list[list[int]]]:
    """A tokenizer, and the tokens of each of several whole texts."""
    tokenizer = draw(st.sampled_from([*WORDS, *BYTES]))()
    if isinstance(tokenizer, CharacterTokenizer):
        token = st.integers(0, len(tokenizer) - 1).map(lambda x: [x])
    elif isinstance(tokenizer, ByteTokenizer):
        token = st.text("aé日😀 \ufffd", min_size=1, max_size=9).map(tokenizer.encode)
    else:
        table = tokenizer.get_vocab()
        whole = sorted(x for word, x in table.items() if len(word) > 1 and word[:3] != "<0x")
        token = st.sampled_from(whole).map(lambda x: [x])
        if "<0x00>" in table or "Ġcat" in table:
            token |= st.text("aé日😀 \ufffd", min_size=1, max_size=9).map(
                lambda text: spell(tokenizer, text)
            )
    return tokenizer, draw(st.lists(token, max_size=20))


def flatten(pieces: list[list[int]]) -> list[int]:
    return [token for piece in pieces for token in piece]


def text_after(parts: TextParts, tokens: list[int]) -> str:
    return "".join(map(parts.add, tokens)) + parts.end()


@given(made=sequences(), data=st.data())
def test_prompt_and_text_are_the_whole(
    made: tuple[Any, list[list[int]]], data: st.DataObject
) -> None:
    tokenizer, pieces = made
    cut = data.draw(st.integers(0, len(pieces)))
    before, after = (flatten(x) for x in (pieces[:cut], pieces[cut:]))
    known, whole = (decode_tokens(tokenizer, x) for x in (before, before + after))
    assert known + text_after(TextParts(tokenizer, before), after) == whole
    # Where the prompt ends inside of a character, the text has this character.
    place = data.draw(st.integers(0, len(before + after)))
    prompt, after = (before + after)[:place], (before + after)[place:]
    text, known = text_after(TextParts(tokenizer, prompt), after), decode_tokens(tokenizer, prompt)
    first = whole.removesuffix(text)
    assert first + text == whole
    assert first.startswith(known.rstrip("\ufffd")) and len(first) <= len(known)


@given(made=sequences(), data=st.data())
def test_prompts_and_answers_that_continue_states_are_the_whole(
    made: tuple[Any, list[list[int]]], data: st.DataObject
) -> None:
    """Wherever an answer is cut, also inside of a character; prompts are whole."""
    tokenizer, pieces = made
    tokens = flatten(pieces)
    whole = {len(flatten(pieces[:count])) for count in range(len(pieces) + 1)}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    shown, recent, first, owes = "", None, 0, False
    for cut in [*cuts, None]:
        new = tokens[first:cut]
        if cut in whole and first in whole and data.draw(st.booleans()):
            shown, owes = decode_tokens(tokenizer, tokens[:cut]), False
        else:
            parts = TextParts(tokenizer, known_of(recent), owes)
            shown += "".join(map(parts.add, new)) + parts.end(owes=cut is not None)
            owes = True
        recent = remember(recent, torch.tensor([new], dtype=torch.int64), filler=NOTHING)
        first += len(new)
    assert shown == decode_tokens(tokenizer, tokens)


def known_of(recent: Any) -> list[int]:
    return [] if recent is None else [token for token in recent[0].tolist() if token != NOTHING]


@given(made=sequences(), data=st.data())
def test_a_text_whose_beginning_is_not_known_is_written_as_inside_of_one(
    made: tuple[Any, list[list[int]]], data: st.DataObject
) -> None:
    """A decoder that looks at the token before may differ."""
    tokenizer, pieces = made
    cut, end = (data.draw(st.integers(1, max(1, len(pieces)))) for _ in range(2))
    before, prompt, after = pieces[:cut], pieces[cut:end], pieces[max(cut, end) :]
    flat: list[list[int]] = [flatten(x) for x in (before, prompt, after)]
    known, whole = (decode_tokens(tokenizer, flatten(flat[:x])) for x in (2, 3))
    if flat[0] and not isinstance(getattr(tokenizer, "decoder", None), DECODERS.BPEDecoder):
        text = text_after(TextParts(tokenizer, [UNKNOWN, *flat[1]]), flat[2])
        assert known + text == whole


@given(made=sequences(), data=st.data())
def test_a_stop_string_is_found_with_the_token_that_completes_it(
    made: tuple[Any, list[list[int]]], data: st.DataObject
) -> None:
    """Wherever it begins and ends in tokens; not where it begins in the prompt."""
    tokenizer, pieces = made
    cut = data.draw(st.integers(0, len(pieces)))
    before, after = (flatten(x) for x in (pieces[:cut], pieces[cut:]))
    known = decode_tokens(tokenizer, before)
    new = decode_tokens(tokenizer, before + after)[len(known) :]
    first = data.draw(st.integers(0, len(new)))
    string = new[first : first + data.draw(st.integers(1, 12))]
    if string and "\ufffd" not in string:
        text = [decode_tokens(tokenizer, before + after[:x]) for x in range(1, len(after) + 1)]
        expected = next(x for x, so_far in enumerate(text, 1) if string in so_far[len(known) :])
        end = RowStop(Stop(strings=("never", string), tokenizer=tokenizer), before)
        assert next(x for x, token in enumerate(after, 1) if end.add(token)) == expected
        assert len(end._before) <= 12  # what is kept does not grow


@pytest.mark.parametrize("make", BYTES)
def test_the_parts_of_a_text_end_with_whole_characters(make: Callable[[], Any]) -> None:
    """But bytes that are no character do not wait for the end, however many there are."""
    tokenizer = make()
    parts = TextParts(tokenizer)
    assert [*map(parts.add, spell(tokenizer, "é😀a"))] == ["", "é", "", "", "", "😀", "a"]
    for text in ("x\ufffd\ufffd😀 ok", "x\ufffd\ufffd日本"):
        assert text_after(TextParts(tokenizer), spell(tokenizer, text)) == text
    first = spell(tokenizer, "é")[0]
    assert "".join(parts.add(first) for _ in range(50)).count("\ufffd") > 40
    assert len(parts._last) <= 8  # what is kept does not grow


@pytest.mark.parametrize("make", BYTES)
def test_half_of_a_character_is_no_stop_string(make: Callable[[], Any]) -> None:
    """A replacement character that the text has is one, with the token after it."""
    tokenizer = make()
    stop = Stop(strings=("\ufffd",), tokenizer=tokenizer)
    end = RowStop(stop, spell(tokenizer, "a\ufffd"))
    assert not any(map(end.add, spell(tokenizer, "é日😀")))
    found = [*map(end.add, spell(tokenizer, "\ufffda"))]
    assert found == [False, False, False, True]


@pytest.mark.parametrize("string", [" the", " cat the", "s", ". ", "<unk>"])
@pytest.mark.parametrize("continues", [False, True])
def test_generate_and_the_batch_stop_at_the_same_token(string: str, continues: bool) -> None:
    model = speaking(metaspace)
    tokenizer = model.tokenizer
    prompt, before, state = [1, 3], [], None
    if continues:
        tokens, state = model.generate(
            prefix=[prompt], max_new_tokens=3, return_state=True, seeds=5
        )
        prompt, before = [2], tokens[0].tolist()
    fields: dict[str, Any] = {"prefix": [prompt], "max_new_tokens": 60, "state": state}
    fields |= {"seeds": 0, "num_samples": 3}
    free, stopped = (model.generate(stop_strings=x, **fields) for x in (["never"], [string]))
    sampling = SamplingParams(seed=0, n=3)
    request = Request(prompt, len(prompt) + 60, sampling, state=state, stop_strings=string)
    rows = run_batch(ContinuousBatch(model, max_num_seqs=4), request).tokens
    known = decode_tokens(tokenizer, before + prompt)
    for row, whole in enumerate(free[:, len(prompt) :].tolist()):
        texts = [decode_tokens(tokenizer, [*before, *prompt, *whole[:x]]) for x in range(1, 61)]
        end = next((x for x, text in enumerate(texts, 1) if string in text[len(known) :]), 60)
        own = stopped[row, len(prompt) :]
        assert own[own >= 0].tolist() == rows[1, row] == whole[:end]


@pytest.mark.parametrize("make", [metaspace, suffixes])
@pytest.mark.parametrize("prompt", [[], [3]])
def test_a_saved_state_has_what_the_text_after_it_needs(
    make: Callable[[], Any], prompt: list[int], tmp_path: Path
) -> None:
    """From a stream, from `generate`, from a batch and from `prefill`."""
    model = speaking(make)
    fields: dict[str, Any] = {"max_new_tokens": 4, "return_state": True, "seeds": [1, 2]}
    stream = model.stream(prefix=[[1, 2], [2]], text=True, **fields)
    texts = list(stream)
    tokens, state = model.generate(prefix=[[1, 2], [2]], **fields)
    request = Request([1, 2], 6, SamplingParams(seed=1), return_state=True)
    answers = run_batch(ContinuousBatch(model, max_num_seqs=4), request)
    assert [1, 2, *answers.tokens[1, 0]] == tokens[0].tolist()
    with torch.no_grad():
        read = model.prefill(tokens[:1])[1]
    state.save(tmp_path / "state")
    loaded = DecodingState.load(tmp_path / "state")
    whole = [row[row >= 0].tolist() for row in tokens]
    for known in (state, stream.state, loaded, DecodingState.cat(loaded.split(1))):
        assert contexts_of(known) == whole
    assert (
        contexts_of(answers.states[1, 0])
        == contexts_of(read)
        == contexts_of(loaded.index_select([0]))
    )
    pairs = zip(whole, (2, 1), strict=True)
    starts = [decode_tokens(model.tokenizer, row[:count]) for row, count in pairs]
    first = ["".join(row) for row in zip(*texts, strict=True)]
    known = [decode_tokens(model.tokenizer, row) for row in whole]
    assert [start + text for start, text in zip(starts, first, strict=True)] == known
    prefix = [prompt, prompt] if prompt else None
    again = {"state": loaded, "prefix": prefix, "max_new_tokens": 12, "seeds": [3, 4]}
    after = model.generate(**again)
    text = "".join(row[1] for row in model.stream(text=True, **again))
    said = [*whole[1], *prompt]
    assert decode_tokens(model.tokenizer, said) + text == decode_tokens(
        model.tokenizer, [*whole[1], *after[1].tolist()]
    )


def test_rows_that_continue_states_of_steps() -> None:
    """Such states have not the last tokens."""
    model = AutoregressiveTransformer(tiny_config(), 5, positions="none").eval()
    model.tokenizer = characters()
    state = model.prefill(torch.tensor([[1], [2]]))[1]
    fields: dict[str, Any] = {"state": model.step(torch.tensor([1, 2]), state)[1], "seeds": [1, 2]}
    tokens = model.generate(stop_strings="never", max_new_tokens=4, **fields)
    texts = model.stream(text=True, max_new_tokens=4, **fields)
    for row, *text in zip(tokens.tolist(), *texts, strict=True):
        assert "".join(text) == decode_tokens(model.tokenizer, row)


def test_a_stream_ends_with_the_character_that_is_not_whole() -> None:
    """It is replaced, or left to what continues the state."""
    model = speaking(byte_level)
    first, second = spell(model.tokenizer, "é")
    with torch.no_grad():
        model.output.bias[first] = 1e9  # the only token that is drawn
    fields: dict[str, Any] = {"prefix": [[second]], "max_new_tokens": 1, "text": True}
    for keeps_state, text in ((False, "\ufffd"), (True, "")):
        assert "".join(model.stream(return_state=keeps_state, **fields)) == text


def speaking(make: Callable[[], Any]) -> AutoregressiveTransformer:
    """A model without an end whose tokens are those of the tokenizer."""
    tokenizer = make()
    size = len(tokenizer.get_vocab())
    model = AutoregressiveTransformer(tiny_config(), size, positions="none").eval()
    model.tokenizer = tokenizer
    return model
