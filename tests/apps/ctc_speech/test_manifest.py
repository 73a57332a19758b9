"""A person's own recordings: read by a manifest, trained, resumed, searched, streamed, exported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from linattn_lab.figures import read_figures
from speech.corpora import BadInput, Corpus, CorpusFlags, Split
from speech.corpora.manifest import read_manifest
from speech.decoding import Search
from speech.error_rate import count_label_errors
from speech.models import TrainedRun
from speech.online import OnlineRecognizer
from speech.presets import smoke
from speech.training import load_speech
from speech.units import BOUNDARY, Units, build_spelling, choose_units
from tests.apps.app_scripts import APPS, Script
from tests.apps.ctc_speech.conftest import tone
from tests.apps.ctc_speech.test_online import NEVER, babble, decode_all, feed
from tests.training.toy import logged

LETTERS = {"l": 300.0, "m": 900.0, "h": 2_500.0}
Line = dict[str, Any]


def write_manifest(path: Path, lines: list[Line] | list[str]) -> Path:
    """A manifest of these lines, JSON or not."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def record(folder: Path, name: str, text: str) -> Line:
    """A recording with a burst for each letter, and its line."""
    pause = np.zeros(1_600, np.float32)
    bursts = [pause if x == " " else tone(LETTERS[x], 0.12) for x in text]
    samples = np.concatenate([x for burst in bursts for x in (burst, pause[:400])])
    (folder / "wav").mkdir(exist_ok=True)
    soundfile.write(folder / "wav" / f"{name}.wav", samples, 16_000)
    return {"audio_filepath": f"wav/{name}.wav", "text": text, "duration": len(samples) / 16_000}


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the manifest train.jsonl of 18 recordings; tests add manifests of their own."""
    folder, draws = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    lines = []
    for index in range(18):
        words = ["".join(draws.choice(list(LETTERS), 2)) for _ in range(3)]
        lines.append(record(folder, f"r{index}", " ".join(words)))
    write_manifest(folder / "train.jsonl", lines)
    return folder


def read(manifest: Path, bad_input: BadInput = "refuse", **flags: Any) -> Corpus:
    units = flags.pop("units", None)
    return CorpusFlags(manifest=manifest, **flags).read("manifest", bad_input, kind=units)


def audio(corpus: Corpus, split: Split) -> set[str]:
    return {item.source.name for item in corpus.splits[split]}


def test_what_has_no_manifest_is_held_out_and_the_rest_is_trained(own: Path) -> None:
    corpus = read(own / "train.jsonl")
    assert [len(corpus.splits[x]) for x in ("train", "dev", "test")] == [14, 2, 2]
    assert len(set.union(*(audio(corpus, x) for x in corpus.splits))) == 18
    assert corpus.units == Units("characters", (*"hlm", BOUNDARY))
    item = corpus.splits["train"][0]
    assert item.id == "train.jsonl, line 1" and len(item.labels) == 8
    given = read(own / "train.jsonl", dev_manifest=own / "train.jsonl")
    assert [len(given.splits[x]) for x in ("train", "dev", "test")] == [16, 18, 2]


def test_a_part_of_a_recording_and_its_speaker(own: Path) -> None:
    line = {**json.loads((own / "train.jsonl").read_text().split("\n")[0]), "other": [1]}
    lines = [{**line, "offset": 0.25, "duration": 0.5, "speaker": 7}, {**line, "duration": None}]
    part, whole = read_manifest(write_manifest(own / "parts.jsonl", lines), "refuse", Counter())
    assert (part.start, part.end, part.speaker) == (0.25, 0.75, "7")
    assert (whole.start, whole.end, whole.speaker) == (0.0, None, "wav/r0.wav")


GOOD = {"audio_filepath": "wav/r0.wav", "text": "lm"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"audio_filepath": "wav/r0.wav", "te', "JSON"),
        ("[1]", "object"),
        ({"audio_filepath": "wav/r0.wav"}, "text: Field required"),
        ({**GOOD, "text": 5}, "text: "),
        ({**GOOD, "text": " \t"}, "words as text"),
        ({**GOOD, "audio_filepath": "wav/none.wav"}, "no file"),
        ({**GOOD, "audio_filepath": "wav"}, "no file"),
        ({**GOOD, "audio_filepath": "x" * 5_000}, "no file"),
        ({**GOOD, "audio_filepath": "a\0b"}, "no file"),
        ({**GOOD, "duration": -1.0}, "a start from 0"),
        ({**GOOD, "offset": -1.0}, "a start from 0"),
        ({**GOOD, "duration": float("nan")}, "a start from 0"),
        ({**GOOD, "duration": "2"}, "duration: "),
        ('{"audio_filepath": "wav/r0.wav", "text": "\\ud800"}', "JSON"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_line_with_a_fault_is_named_or_left_out(line: Any, named: str, own: Path) -> None:
    path, skipped = write_manifest(own / "bad.jsonl", [GOOD, line, GOOD]), Counter[str]()
    with pytest.raises((ValueError, OSError), match=named) as caught:
        read_manifest(path, "refuse", Counter())
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}, line 2: expected") and len(sentence) < 700
    assert "\n" not in sentence
    assert len(read_manifest(path, "skip", skipped)) == 2
    assert skipped == {"lines of the manifest that cannot be used": 1}


@pytest.mark.parametrize("units", ["characters", "bpe:8"])
@pytest.mark.parametrize("letter", ["é", "\x1b", BOUNDARY])
def test_characters_that_training_lacks_are_named(units: str, letter: str, own: Path) -> None:
    dev = write_manifest(own / "dev.jsonl", [GOOD, {**GOOD, "text": f"lm h{letter}"}])
    with pytest.raises(ValueError, match="training part") as caught:
        read(own / "train.jsonl", dev_manifest=dev, units=units)
    assert "dev.jsonl, line 2: expected characters" in str(caught.value)
    assert repr(letter) in str(caught.value)
    corpus = read(own / "train.jsonl", "skip", dev_manifest=dev, units=units)
    assert len(corpus.splits["dev"]) == 1
    assert corpus.skipped["dev"] == {"characters that the training part lacks": 1}


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({**GOOD, "text": "lmh" * 50}, "frames for 150 labels"),
        ({**GOOD, "duration": 60.0}, "a part within"),
    ],
)
def test_recordings_that_cannot_be_learned_have_their_line(
    fault: Line, named: str, own: Path, tmp_path: Path
) -> None:
    dev = write_manifest(own / "dev.jsonl", [GOOD, fault])
    corpus = read(own / "train.jsonl", dev_manifest=dev)
    with pytest.raises(ValueError, match=r"dev\.jsonl, line 2: .*" + named):
        load_speech(corpus, "dev", smoke("linear"), tmp_path)
    skip = replace(smoke("linear"), bad_input="skip")
    assert len(load_speech(corpus, "dev", skip, tmp_path)) == 1


@pytest.mark.parametrize("content", ["", "\n\n", "not JSON"])
def test_a_manifest_of_no_use_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(ValueError, match=r"x\.jsonl: expected a line that can be used"):
        read(tmp_path / "x.jsonl", "skip")


def test_fewer_pieces_than_characters_are_refused(own: Path) -> None:
    with pytest.raises(ValueError, match="as bpe:4, got bpe:3"):
        read(own / "train.jsonl", units="bpe:3")
    assert len(read(own / "train.jsonl", units="bpe:8").units.inventory) == 8


def test_a_lexicon_gives_phones(own: Path, tmp_path: Path) -> None:
    words = sorted({w for line in (own / "train.jsonl").read_text().splitlines()
                    for w in json.loads(line)["text"].split()})  # fmt: skip
    (tmp_path / "x.dict").write_text("".join(f"{x} {' '.join(x.upper())}\n" for x in words))
    corpus = read(own / "train.jsonl", lexicon=tmp_path / "x.dict")
    assert corpus.units == Units("phones", ("H", "L", "M"))
    texts = read(own / "train.jsonl", units="phones")
    assert texts.units == Units("phones", tuple(words))


texts = st.lists(st.text("aé\u200dß漢😀", min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["characters", "bpe:30"])
@given(said=st.lists(texts, min_size=1, max_size=5))
def test_labels_spell_the_words_again(kind: str, said: list[list[str]]) -> None:
    units = choose_units(kind, None, said)
    spelling = build_spelling(units, None)
    for words in said:
        labels = units.labels(units.numbers(spelling.labels(words)))
        found = units.words(labels)
        assert not spelling.missing(words) and [x.word for x in found] == words
        assert units.text(labels) == " ".join(words)
        for word in found:
            own = "".join(labels[word.first : word.last + 1])
            assert own.removeprefix(BOUNDARY) == word.word


def test_words_are_counted_beside_labels() -> None:
    units = Units("characters", ("a", "b", BOUNDARY))
    errors = count_label_errors([[1, 3, 2, 2]], [[1, 3, 2, 1]], units)
    assert errors.metrics()["character_error_rate"] == 1 / 4
    assert errors.metrics()["word_error_rate"] == 1 / 2


@pytest.fixture(scope="session")
def flags(own: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What trains a recognizer that streams on the recordings, in seconds."""
    cache = tmp_path_factory.mktemp("cache")
    start: list[object] = ["--preset", "smoke", "--corpus", "manifest", "--cache", cache]
    start += ["--manifest", own / "train.jsonl", "--chunk", 4, "--normalize", "running"]
    return [*start, "--units", "bpe:8", "--steps", 60, "--learning-rate", "1e-2"]


@pytest.fixture(scope="session")
def own_run(flags: list[object], tmp_path_factory: pytest.TempPathFactory, script: Script) -> Path:
    folder = tmp_path_factory.mktemp("own-runs") / "run"
    done = script("train", *flags, "--out", folder)
    assert done.code == 0, done.stderr
    return folder


def test_a_run_on_own_recordings_resumes_and_counts_words(
    own_run: Path, flags: list[object], tmp_path: Path, script: Script
) -> None:
    assert script("train", *flags, "--out", tmp_path / "run", "--steps", 30).code == 0
    assert script("train", *flags, "--out", tmp_path / "run", "--resume").code == 0
    assert logged(tmp_path / "run") == logged(own_run)
    metrics = json.loads((own_run / "summary.json").read_text())["metrics"]
    assert {"piece_error_rate", "word_error_rate", "dev_piece_error_rate"} < metrics.keys()
    other = script("train", *flags, "--out", own_run, "--resume", "--units", "characters")
    assert other.code == 2 and "units was" in other.stderr


def test_own_recordings_are_searched_and_transcribed(
    own_run: Path, own: Path, tmp_path: Path, script: Script
) -> None:
    shared = ["--run", own_run, "--cache", tmp_path, "--manifest", own / "train.jsonl"]
    done = script("transcribe", *shared, "--split", "test", "--ngram", 3)
    assert done.code == 0, done.stderr
    assert "words are wrong" in done.stdout and "pieces are wrong" in done.stdout
    figures, metrics = read_figures(own_run), json.loads((own_run / "summary.json").read_text())
    greedy = "test/running/average 1/greedy"
    assert figures[f"{greedy}/word_error_rate"] == metrics["metrics"]["word_error_rate"]
    done = script("transcribe", "--run", own_run, "--json", own / "wav" / "r0.wav")
    assert done.code == 0, done.stderr
    (best,) = json.loads(done.stdout)[0]["hypotheses"]
    assert [x["word"] for x in best["words"]] == best["text"].split()
    assert (
        "".join(x["piece"] for x in best["pieces"]).replace(BOUNDARY, " ").strip() == best["text"]
    )
    # Other recordings have the run's pieces, not those of what the manifests leave to train on.
    done = script("transcribe", *shared, "--split", "test", "--test-manifest", own / "train.jsonl")
    assert done.code == 0 and "of 54 words are wrong" in done.stdout, done.stderr
    other = write_manifest(own / "other.jsonl", [{**GOOD, "text": "xyz"}])
    done = script("transcribe", *shared, "--split", "test", "--test-manifest", other)
    assert done.code == 2 and "other.jsonl, line 1: expected characters" in done.stderr
    lexicon = tmp_path / "x.dict"
    lexicon.write_text("lm L M\n")
    done = script("stream", "--run", own_run, "--lexicon", lexicon, own / "wav" / "r0.wav")
    assert done.code == 2 and "the lexicon: expected none" in done.stderr


@pytest.fixture
def spelling_run(streaming_run: TrainedRun) -> TrainedRun:
    """A run with random weights, sure of many characters."""
    described = {"units": "characters", "inventory": ["a", "b", "c", BOUNDARY, "é"]}
    return replace(streaming_run, config={**streaming_run.config, **described})


EXAMPLE = APPS / "ctc_speech" / "run_onnx.py"


@pytest.mark.slow
# torch 2.13 exports through a name that it has deprecated itself.
@pytest.mark.filterwarnings("ignore::FutureWarning:copyreg")
@pytest.mark.parametrize("units", ["characters", "phones"])
def test_an_export_says_without_torch_what_the_recognizer_says(
    units: str, spelling_run: TrainedRun, streaming_run: TrainedRun, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed, which torch.onnx needs")
    from speech.export import export_recognizer

    run = streaming_run if units == "phones" else spelling_run
    recording = tmp_path / "x.wav"
    soundfile.write(recording, babble(3.21), 16_000)
    (tmp_path / "model.onnx").write_bytes(export_recognizer(run, 4))
    recognizer = OnlineRecognizer(run, Search(), 4, NEVER)
    stream = recognizer.create_stream()
    feed(stream, soundfile.read(recording, dtype="float32")[0], [])
    decode_all(recognizer, [stream])
    code = f"""
import runpy, sys
sys.argv = [{str(EXAMPLE)!r}, "model.onnx", "x.wav"]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not [x for x in sys.modules if x.split(".")[0] in ("torch", "speech", "linattn_core")]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.rstrip("\n").split("\n")  # "\r", read as the end of a line
    assert len(said[-1]) > 10 and said[-1] == recognizer.result(stream).text
    assert said[5] != said[-1]  # words came while the recording was read
