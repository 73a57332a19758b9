"""The decoding that is selected on the dev set, and the test set, which is recognized once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from linattn_models.training import RunFolder
from speech.corpora import Corpus, CorpusFlags
from speech.decoding import Decoding, Search
from speech.selection import FILE, Selection, list_decodings

BEST = "3-gram, weight 0.35, bonus 0.5"


@pytest.fixture
def run(smoke_run: Path, tmp_path: Path) -> RunFolder:
    """A finished run, to write to."""
    return RunFolder(shutil.copytree(smoke_run, tmp_path / "run"))


@pytest.fixture
def selection(tones: Path, tmp_path: Path) -> Selection:
    return Selection(CorpusFlags(data_dir=tones).read("kaldi"), tmp_path, "refuse", average=2)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decoding recognizes the same; decoded in no time."""
    monkeypatch.setattr(Search, "phones", lambda *arguments: [[1]] * len(arguments[-1]))


def test_the_test_set_is_recognized_once_and_only_when_asked(
    run: RunFolder, selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_dev = selection.recognize(run, test=False)
    rates = on_dev.dev_rates
    assert list(rates) == [decoding.label for decoding in list_decodings()]
    assert rates[on_dev.selected] == min(rates.values()) <= rates["greedy"]
    assert on_dev.dev.selected["phoneme_error_rate"] == min(rates.values())
    assert on_dev.test is None and '"test"' not in (run.path / FILE).read_text()

    with_test = selection.recognize(run, test=True)
    assert with_test.test is not None and with_test.test.phones == 9
    monkeypatch.setattr("speech.selection.load_run", None)  # whatever is stored needs no model
    assert selection.recognize(run, test=True) == with_test
    assert selection.recognize(run, test=False) == on_dev


def test_the_test_set_gets_the_decoding_with_the_fewest_errors_on_dev(
    run: RunFolder, selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that has learned nothing would make as many errors with each decoding."""

    def phones(search: Search, log_probabilities: Tensor, lengths: Tensor) -> list[list[int]]:
        return [[1] * (1 if search.decoding.label == BEST else 50)] * len(lengths)

    monkeypatch.setattr(Search, "phones", phones)
    recognition = selection.recognize(run, test=True)
    assert recognition.selected == BEST
    for errors in (recognition.dev, recognition.test):
        assert errors is not None and errors.selected["phoneme_error_rate"] <= 1
        assert errors.greedy["phoneme_error_rate"] > 10


@pytest.mark.usefixtures("no_model")
def test_of_equal_decodings_the_simplest_is_selected(run: RunFolder, selection: Selection) -> None:
    recognition = selection.recognize(run, test=False)
    assert len(set(recognition.dev_rates.values())) == 1
    assert recognition.selected == list_decodings()[0].label == "greedy"


def _other_phones(corpus: Corpus) -> Corpus:
    one, *others = corpus.splits["test"]
    changed = replace(one, phones=(*one.phones, "MID"))
    return replace(corpus, splits={**corpus.splits, "test": (changed, *others)})


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    "change",
    [
        lambda x: replace(x, corpus=_other_phones(x.corpus)),
        lambda x: replace(x, bad_input="skip"),
        lambda x: replace(x, average=1),
    ],
    ids=["phones", "bad_input", "average"],
)
def test_other_speech_and_weights_are_recognized_again(
    run: RunFolder, selection: Selection, change: Callable[[Selection], Selection]
) -> None:
    selection.recognize(run, test=True)
    change(selection).recognize(run, test=False)
    assert '"test"' not in (run.path / FILE).read_text()


@pytest.mark.usefixtures("no_model")
def test_a_damaged_record_is_named(run: RunFolder, selection: Selection) -> None:
    selection.recognize(run, test=True)
    record = json.loads((run.path / FILE).read_text())
    for content in ("{", json.dumps({**record, "dev": 3})):
        (run.path / FILE).write_text(content)
        with pytest.raises(ValueError, match=FILE):
            selection.recognize(run, test=True)


@pytest.mark.parametrize(
    ("decoding", "bonus"),
    [
        (Decoding(decoder="beam"), 0.0),
        (Decoding(decoder="beam", ngram=3), 1.0),
        (Decoding(decoder="beam", lm=Path("phones.arpa")), 1.0),
        (Decoding(decoder="beam", ngram=3, insertion_bonus=0.0), 0.0),
    ],
)
def test_phones_have_a_bonus_where_there_is_an_ngram(decoding: Decoding, bonus: float) -> None:
    assert decoding.bonus == bonus


@pytest.mark.parametrize(
    ("flags", "named"),
    [({"beam": 0}, "--beam"), ({"lm_weight": -1.0}, "--lm-weight"),
     ({"insertion_bonus": float("nan")}, "--insertion-bonus")],
)  # fmt: skip
def test_searches_out_of_range_are_refused(flags: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}"):
        Decoding(**flags).check()  # type: ignore[arg-type]
