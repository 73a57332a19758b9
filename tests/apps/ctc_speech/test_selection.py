"""The decoding that is selected on the dev set, and the test set, which is recognized once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from torch import Tensor

import speech.selection as selecting
from linattn_models.training import RunFolder
from speech.corpora import Corpus, load_corpus
from speech.decoding import Decoding, Search
from speech.selection import BEAM, FILE, GREEDY, Selection, grid

BEST = "3-gram, weight 0.35, bonus 0.5"


@pytest.fixture
def run(smoke_run: Path, tmp_path: Path) -> RunFolder:
    """A finished run, to write to."""
    return RunFolder(shutil.copytree(smoke_run, tmp_path / "run"))


@pytest.fixture
def corpus(tones: Path, tmp_path: Path) -> Corpus:
    return load_corpus("kaldi", tones, cache=tmp_path)


def test_the_test_set_is_recognized_once_and_only_when_asked(
    run: RunFolder, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = Selection(corpus, tmp_path, "refuse", average=2)
    on_dev = selection.recognition(run, test=False)
    rates = on_dev["dev_rates"]
    assert list(rates) == [decoding.label for decoding in grid()]
    assert rates[on_dev["selected"]] == min(rates.values()) <= rates["greedy"]
    assert on_dev["dev"]["selected"]["phoneme_error_rate"] == min(rates.values())
    assert "test" not in on_dev and '"test"' not in (run.path / FILE).read_text()

    with_test = selection.recognition(run, test=True)
    assert with_test["test"]["phones"] == 9
    assert {name: with_test[name] for name in on_dev} == on_dev
    monkeypatch.setattr(selecting, "load_run", None)  # whatever is stored needs no model
    assert selection.recognition(run, test=True) == with_test
    assert selection.recognition(run, test=False) == on_dev


def test_the_test_set_gets_the_decoding_with_the_fewest_errors_on_dev(
    run: RunFolder, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that has learned nothing would make as many errors with each decoding."""

    def phones(search: Search, log_probabilities: Tensor, lengths: Tensor) -> list[list[int]]:
        return [[1] * (1 if search.decoding.label == BEST else 50)] * len(lengths)

    monkeypatch.setattr(Search, "phones", phones)
    found = Selection(corpus, tmp_path, "refuse", average=1).recognition(run, test=True)
    assert found["selected"] == BEST
    for split in ("dev", "test"):
        errors = found[split]
        assert errors["selected"]["phoneme_error_rate"] <= 1
        assert errors["greedy"]["phoneme_error_rate"] > 10


def test_of_equal_decodings_the_simplest_is_selected(
    run: RunFolder, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "phones", lambda *arguments: [[1]] * len(arguments[-1]))
    found = Selection(corpus, tmp_path, "refuse", average=1).recognition(run, test=False)
    assert len(set(found["dev_rates"].values())) == 1
    assert found["selected"] == grid()[0].label == "greedy"


def test_other_weights_are_recognized_again(run: RunFolder, corpus: Corpus, tmp_path: Path) -> None:
    averaged = Selection(corpus, tmp_path, "refuse", average=2).recognition(run, test=True)
    last = Selection(corpus, tmp_path, "refuse", average=1).recognition(run, test=False)
    assert (averaged["average"], last["average"]) == (2, 1)
    assert "test" not in last and '"test"' not in (run.path / FILE).read_text()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("selected", "2-gram"),
        ("dev", 3),
        ("test", {"greedy": {}}),
        ("test", {x: {"phoneme_error_rate": 0.1} for x in ("greedy", "selected")} | {"phones": 9}),
        ("environment", {}),
        ("date", 0),
    ],
)
def test_a_damaged_record_is_refused(
    run: RunFolder, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, value: object,
) -> None:  # fmt: skip
    monkeypatch.setattr(Search, "phones", lambda *arguments: [[1]] * len(arguments[-1]))
    selection = Selection(corpus, tmp_path, "refuse", average=1)
    record = selection.recognition(run, test=True)
    (run.path / FILE).write_text(json.dumps({**record, name: value}))
    with pytest.raises(ValueError, match=r"recognition\.json: expected the errors of a run"):
        selection.recognition(run, test=True)


OTHERS: dict[str, Callable[[Selection], Selection]] = {
    "corpus": lambda of: replace(of, corpus=replace(of.corpus, name="other")),
    "utterances": lambda of: replace(of, corpus=_without_one(of.corpus)),
    "bad input": lambda of: replace(of, bad_input="skip"),
}


def _without_one(corpus: Corpus) -> Corpus:
    return replace(corpus, splits={**corpus.splits, "train": corpus.splits["train"][1:]})


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_speech_is_recognized_again(
    run: RunFolder, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    other: Callable[[Selection], Selection],
) -> None:  # fmt: skip
    monkeypatch.setattr(Search, "phones", lambda *arguments: [[1]] * len(arguments[-1]))
    selection = Selection(corpus, tmp_path, "refuse", average=1)
    selection.recognition(run, test=True)
    other(selection).recognition(run, test=False)
    assert '"test"' not in (run.path / FILE).read_text()


@pytest.fixture(scope="module")
def on_an4(repository: Path) -> dict[str, dict[str, float]]:
    """The published error rates on AN4's dev set, of each run by decoding."""
    results = json.loads((repository / "docs/results/speech/results.json").read_text())
    return {name: run["recognition"]["dev_rates"] for name, run in results["runs"].items()}


def test_the_default_with_a_5_gram_is_not_worse_than_greedy(
    on_an4: dict[str, dict[str, float]],
) -> None:
    default = Decoding("beam", ngram=5)
    assert default.beam == BEAM
    assert on_an4
    over_greedy = {name: x[default.label] - x[GREEDY.label] for name, x in on_an4.items()}
    assert max(over_greedy.values()) < 0.001, over_greedy  # one phone of 1,513, in one run of nine
    assert fmean(over_greedy.values()) < 0, over_greedy


@pytest.mark.parametrize(
    ("decoding", "bonus"),
    [
        (Decoding("beam"), 0.0),
        (Decoding("beam", ngram=3), 1.0),
        (Decoding("beam", lm=Path("phones.arpa")), 1.0),
        (Decoding("beam", ngram=3, insertion_bonus=0.0), 0.0),
    ],
)
def test_phones_have_a_bonus_where_there_is_an_ngram(decoding: Decoding, bonus: float) -> None:
    assert decoding.bonus == bonus


def test_the_grid_begins_with_the_simplest_and_has_no_decoding_twice() -> None:
    assert grid()[0] == Decoding() and not grid()[1].ngram
    assert len({decoding.label for decoding in grid()}) == len(grid())
    assert grid()[-1].label == "5-gram, weight 0.5, bonus 1"
