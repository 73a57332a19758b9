"""The n-gram model is a distribution after every history, and a file of it is the same model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import NGram
from linattn_models.ctc.arpa import Entry

PHONES = ("a", "b", "c")
END = 0
transcripts_of = st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=6)


def log_prob(model: NGram, history: Sequence[int], phone: int) -> float:
    """ln p(phone | history)."""
    return float(model.log_probs(reduce(model.advance, history, model.start))[phone])


@given(transcripts_of, st.integers(1, 4))
def test_probabilities_after_each_history_sum_to_1(
    transcripts: list[list[int]], order: int
) -> None:
    model = NGram.estimate(transcripts, PHONES, order)
    for length in range(4):
        for history in itertools.product((1, 2, 3), repeat=length):
            logs = [log_prob(model, history, phone) for phone in (END, 1, 2, 3)]
            assert sum(map(math.exp, logs)) == pytest.approx(1)
            assert min(logs) > -math.inf


def test_the_formula_of_witten_and_bell() -> None:
    model = NGram.estimate([[1, 2], [1, 1]], ("a", "b"), order=2)
    # c(a)=3, c(b)=1, c(end)=2 and three different of six; then uniform over three.
    unigram = {1: (3 + 3 / 3) / 9, 2: (1 + 3 / 3) / 9, END: (2 + 3 / 3) / 9}
    # After a: a once, b once, the end once.
    for phone, probability in unigram.items():
        after_a = (1 + 3 * probability) / 6
        assert math.exp(log_prob(model, [1], phone)) == pytest.approx(after_a)
    # After b: the end once; the others back off.
    assert math.exp(log_prob(model, [2], END)) == pytest.approx((1 + unigram[END]) / 2)
    assert math.exp(log_prob(model, [2], 1)) == pytest.approx(unigram[1] / 2)
    # At the beginning: a twice.
    assert math.exp(log_prob(model, [], 1)) == pytest.approx((2 + unigram[1]) / 3)
    assert math.exp(log_prob(model, [1, 2], 1)) == math.exp(log_prob(model, [2], 1))


def test_perplexity() -> None:
    uniform = NGram.estimate([[1, 2, 3]], PHONES, order=1)
    assert uniform.perplexity([[1, 1], [2]]) == pytest.approx(4)
    transcripts = [[1, 2, 3, 1, 2, 3, 1, 2, 3]] * 9
    by_order = [NGram.estimate(transcripts, PHONES, n).perplexity(transcripts) for n in (1, 2, 3)]
    assert by_order == sorted(by_order, reverse=True) and by_order[-1] < 1.5
    model = NGram.estimate([[1, 2], [3]], PHONES, order=3)
    logs = [log_prob(model, [], 2), log_prob(model, [2], 1), log_prob(model, [2, 1], END)]
    assert model.perplexity([[2, 1]]) == pytest.approx(math.exp(-np.mean(logs)))


@given(transcripts_of, st.integers(1, 4))
def test_a_model_read_from_its_file_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, transcripts: list[list[int]], order: int
) -> None:
    model = NGram.estimate(transcripts, PHONES, order)
    path = tmp_path_factory.mktemp("lm") / "phones.arpa"
    model.write(path)
    assert NGram.read(path, PHONES).entries == model.entries
    assert NGram.read(path, PHONES).order == model.order


def back_off(entries: dict[tuple[int, ...], Entry], history: tuple[int, ...], token: int) -> float:
    """log10 p(token | history), by the definition."""
    if (entry := entries.get((*history, token))) is not None:
        return entry.log10
    backoff = entries[history].backoff if history in entries else 0.0
    return backoff + back_off(entries, history[1:], token)


@given(
    st.dictionaries(
        st.lists(st.integers(-1, 3), min_size=2, max_size=4).map(tuple),
        st.builds(Entry, st.floats(-3, 0), st.floats(-1, 0)),
    ),
    st.lists(st.integers(1, 3), max_size=12),
)
def test_a_state_is_what_matters_of_the_history(
    longer: dict[tuple[int, ...], Entry], said: list[int]
) -> None:
    """Also where the beginning of an n-gram is not listed; there are no more states than that."""
    entries = {(phone,): Entry(-1.0, -0.1 * phone) for phone in range(4)} | longer
    model = NGram(PHONES, entries)
    state, states = model.start, {model.start}
    for place, phone in enumerate(said, start=1):
        state = model.advance(state, phone)
        states.add(state)
        recent = (-1, *said[:place])[max(0, place + 2 - model.order) :]
        for token, log in enumerate(model.log_probs(state)):
            expected = back_off(entries, recent, token) * math.log(10)
            assert log == pytest.approx(expected)
    begins = {ngram[:length] for ngram in entries for length in range(len(ngram) + 1)}
    assert states <= begins


OTHER_TOOL = """\
some comment

\\data\\
ngram 1 = 5
ngram  2=3

\\1-grams:
-1.0 <unk>
0\t<s>\t-0.5
-0.5 </s>
-0.25 a -0.125
-inf b

\\2-grams:
-0.2 <s> a
-0.1 a </s>
-0.3 a <unk>

\\end\\
"""


def test_it_reads_files_of_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "other.arpa"
    path.write_text(OTHER_TOOL.replace("\n", "\r\n"))
    model = NGram.read(path, PHONES)
    log10 = {
        (history, phone): log_prob(model, history, phone) / math.log(10)
        for history, phone in [((), 1), ((), 2), ((), 3), ((1,), END), ((1,), 1), ((3,), END)]
    }
    expected = [-0.2, -0.5 - 99, -0.5 - 1.0, -0.1, -0.125 - 0.25, -0.5]
    assert list(log10.values()) == pytest.approx(expected)


def cut(number: int) -> Callable[[str], str]:
    return lambda text: "\n".join(text.split("\n")[:number])


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda text: "", "line 1"),
        (cut(17), "line 18"),
        (replaced("ngram 1 = 5", "ngram 1 = 4"), "line 12"),
        (replaced("ngram 1 = 5", "ngram 1 = 6"), "line 14"),
        (replaced("ngram 1 = 5", "ngram 2 = 5"), "line 4"),
        (replaced("ngram 1 = 5\nngram  2=3\n", ""), r"expected ngram 1=\.\.\., got '\\\\1-grams"),
        (replaced("ngram  2=3", "ngram 2=999999999999999999"), "expected log10 p, 2 words"),
        (replaced("-0.25 a", "a quarter"), "line 11"),
        (replaced("-0.25 a", "0.25 a"), "expected the logarithm of a probability, got '0.25 a"),
        (replaced("-0.125", "inf"), "expected the logarithm of a probability"),
        (replaced("-0.25 a", "-0.25 </s>"), "line 11"),
        (replaced("-0.25 a", "-0.25 d"), "the 3 phones of the recognizer alone, got 'd'"),
        (replaced("-0.2 <s> a", "-0.2 <s> a b c"), "line 15"),
    ],
)
def test_damaged_files_are_refused(
    damage: Callable[[str], str], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.arpa"
    path.write_text(damage(OTHER_TOOL))
    with pytest.raises(ValueError, match=named) as refusal:
        NGram.read(path, PHONES)
    assert "\n" not in str(refusal.value) and "damaged.arpa" in str(refusal.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.arpa"
    path.write_bytes(b"\xff\xfe\\data\\")
    with pytest.raises(ValueError, match="ARPA"):
        NGram.read(path, PHONES)


@pytest.mark.parametrize(
    ("transcripts", "phones", "order", "named"),
    [
        ([], PHONES, 2, "transcripts"),
        ([[1, 4]], PHONES, 2, "phones"),
        ([[1, 0]], PHONES, 2, "phones"),
        ([[1]], PHONES, 0, "order"),
        ([[1]], ("a", "a b"), 2, "phones"),
        ([[1]], ("a", "<s>"), 2, "phones"),
        ([[1]], ("a", "a"), 2, "phones"),
        ([[1]], (), 2, "phones"),
    ],
)
def test_what_cannot_be_estimated_is_refused(
    transcripts: list[list[int]], phones: tuple[str, ...], order: int, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        NGram.estimate(transcripts, phones, order)


@pytest.mark.parametrize("phone", [-1, 4])
def test_a_phone_out_of_range_is_refused(phone: int) -> None:
    with pytest.raises(ValueError, match="phones"):
        NGram.estimate([[1]], PHONES).perplexity([[phone]])


def test_phones_are_integers() -> None:
    ngram = NGram.estimate([[1]], PHONES)
    for call in (
        lambda: NGram.estimate([[1.9]], PHONES),  # type: ignore[list-item]
        lambda: ngram.perplexity([["x", 1]]),  # type: ignore[list-item]
        lambda: ngram.perplexity([1, 2]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError, match="phone"):
            call()
