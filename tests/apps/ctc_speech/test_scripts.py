"""The scripts, run as a user runs them, on bursts of three tones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from linattn_lab.figures import read_figures
from linattn_models.ctc import NGram, ctc_greedy
from linattn_models.training import RunFolder, write_json
from speech.corpora import CorpusFlags
from speech.decoding import Decoding, Search
from speech.error_rate import count_errors
from speech.models import load_run
from speech.transcription import transcribe
from tests.apps.app_scripts import Script
from tests.apps.ctc_speech.conftest import other_text, smoke_flags


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_run_is_not_resumed_on_another_corpus(
    split: str, smoke_run: Path, tones: Path, tmp_path: Path, script: Script
) -> None:
    """With as many utterances, and the same phones."""
    run = shutil.copytree(smoke_run, tmp_path / "run")
    flags = smoke_flags(other_text(tones, tmp_path / "corpus", split), run)
    done = script("train", *flags, "--steps", 12, "--resume")
    assert done.code == 2 and "corpus_digest was" in done.stderr
    again = script("train", *smoke_flags(tones, run), "--resume", "--bad-input", "skip")
    assert again.code == 2 and "bad_input was" in again.stderr


def test_a_split_has_the_errors_that_training_and_transcribing_found(
    smoke_run: Path, tones: Path, tmp_path: Path, script: Script
) -> None:
    run = shutil.copytree(smoke_run, tmp_path / "run")
    trained = read_figures(run)
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    assert trained == metrics and metrics["test_phones"] == 9
    flags = ["--run", run, "--data-dir", tones, "--cache", tmp_path, "--split", "test"]
    done = script("transcribe", *flags)
    assert done.code == 0, done.stderr
    figures = read_figures(run)
    assert trained.items() < figures.items()
    for name in ("phoneme_error_rate", "substitutions", "insertions", "deletions"):
        assert figures[f"test/speaker/average 1/greedy/{name}"] == metrics[name]
    alone = figures["test/utterance/average 1/greedy/phoneme_error_rate"]
    assert alone == transcribed_rate(run, tones)
    assert f"{alone:.2%} of 9 phones are wrong" in done.stdout
    done = script("transcribe", *flags, "--ngram", 2, "--average", 2)
    assert done.code == 0, done.stderr
    label = "test/speaker/average 2/2-gram, weight 0.5, bonus 1/phoneme_error_rate"
    assert read_figures(run).keys() > figures.keys() | {label}


def transcribed_rate(run: Path, tones: Path) -> float:
    """The error rate of `transcribe` on the test set, decoded greedily."""
    trained = load_run(run)
    corpus = CorpusFlags(data_dir=tones).read("kaldi")
    said, heard = [], []
    for item in corpus.splits["test"]:
        transcript = transcribe(trained, tones / "test" / f"{item.id}.wav", Search(), 1)
        (phones,) = ctc_greedy(torch.from_numpy(transcript.posteriors)[None])
        said.append(list(item.labels))
        heard.append([trained.units.inventory[phone - 1] for phone in phones])
    return count_errors(said, heard).rate


def test_recordings_are_searched_with_the_ngram_that_was_written(
    smoke_run: Path, tones: Path, tmp_path: Path, script: Script
) -> None:
    arpa, recording = tmp_path / "phones.arpa", tones / "test" / "test-0.wav"
    folder = shutil.copytree(smoke_run, tmp_path / "run")
    flags = ["--run", folder, "--data-dir", tones, "--cache", tmp_path, "--split", "dev"]
    done = script("transcribe", *flags, "--ngram", 2, "--write-lm", arpa)
    assert done.code == 0, done.stderr
    run = load_run(smoke_run)
    corpus = CorpusFlags(data_dir=tones).read("kaldi")
    estimated = NGram.estimate(corpus.transcripts("train"), corpus.units.inventory, 2)
    assert NGram.read(arpa, run.units.inventory).entries == estimated.entries

    for given, bonus in (([], 1.0), (["--insertion-bonus", -0.5], -0.5)):
        done = script("transcribe", "--run", smoke_run, "--lm", arpa, "--json", *given, recording)
        assert done.code == 0, done.stderr
        (item,) = json.loads(done.stdout)
        decoding = Decoding(insertion_bonus=bonus)
        transcript = transcribe(run, recording, Search(decoding, estimated), 1)
        assert item["hypotheses"] == transcript.to_dict()["hypotheses"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "FILE"),
        (["--split", "dev", "a.wav"], "FILE"),
        (["--ngram", 3, "a.wav"], "--ngram"),
        (["--split", "dev", "--ngram", 3, "--lm", "x.arpa"], "--ngram"),
        (["--split", "dev", "--write-lm", "x.arpa"], "--write-lm"),
        (["--split", "dev", "--ngram", 3, "--write-lm", "/tmp"], "--write-lm"),
        (["--split", "dev", "--chunk", 4], "chunk"),
        (["--split", "dev", "--chunk", 0], "--chunk"),
        (["--split", "dev", "--average", 0], "--average"),
        (["--split", "dev", "--beam", 0], "--beam"),
        (["--split", "dev", "--beam", 10**9], "--beam"),
        (["--split", "dev", "--average", 10**20], "--average"),
        (["--split", "dev", "--average", 3], "--average"),
        (["--split", "dev", "--ngram", 3, "--lm-weight", -1], "--lm-weight"),
    ],
)
def test_transcribe_refuses_what_it_would_not_use(
    flags: list[object], named: str, smoke_run: Path, tones: Path, tmp_path: Path, script: Script
) -> None:
    shared = ["--run", smoke_run, "--data-dir", tones, "--cache", tmp_path]
    done = script("transcribe", *shared, *flags)
    assert done.code == 2 and f"{named}: expected" in done.stderr


def test_other_phones_and_an_edited_configuration_are_refused(
    smoke_run: Path, tones: Path, tmp_path: Path, script: Script
) -> None:
    lexicon = tmp_path / "x.dict"
    lexicon.write_text("LOW L OW\nMID M IH D\nHIGH HH AY\n")
    flags = ["--data-dir", tones, "--cache", tmp_path, "--lexicon", lexicon, "--split", "test"]
    done = script("transcribe", "--run", smoke_run, *flags)
    assert done.code == 2 and "the --lexicon of its training, if any" in done.stderr
    run = RunFolder(shutil.copytree(smoke_run, tmp_path / "run"))
    write_json(run.config_file, {**run.config(), "model": {}})
    done = script("transcribe", "--run", run.path, tones / "test" / "test-0.wav")
    assert done.code == 2 and "config.json, got another one" in done.stderr


def test_a_long_recording_has_the_phones_of_a_search_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    frames = (6 * torch.randn(1, 90, 5)).log_softmax(-1)
    search, lengths = Search(), torch.tensor([80])
    (whole,) = search.hypotheses(frames, lengths, 1)[0]
    monkeypatch.setattr("speech.decoding.PIECE", 7)
    parts = search.hypotheses(frames, lengths, 2)[0]
    assert len(parts) == 2 and parts[0].phones == whole.phones
    assert parts[0].log_probability == pytest.approx(whole.log_probability, rel=0.1)
    assert parts[0].score == parts[0].log_probability


def test_several_processes_are_refused_before_any_work(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = script("compare", "--preset", "smoke", "--out", tmp_path / "out")
    assert done.code == 2 and "expected one process, got 2 of torchrun" in done.stderr
    assert not list(tmp_path.iterdir())


def test_errors_are_counted_by_kind() -> None:
    said = [["A", "B", "C"], ["A"]]
    errors = count_errors(said, [["A", "X", "C", "D"], []])
    assert (errors.substitutions, errors.insertions, errors.deletions) == (1, 1, 1)
    assert errors.rate == 3 / 4
    assert errors.confused == (("B", "X", 1),)
