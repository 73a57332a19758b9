"""The corpora: their splits, and the sentences about what is missing."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech.audio import read_audio
from speech.corpora import Corpus, load_corpus
from speech.corpora.corpus import Utterance, cut_dev, with_phones
from speech.corpora.kaldi import read_data_folder
from speech.corpora.synthesizer import mnemonics
from speech.lexicon import parse_lexicon
from speech.sources import Ark, Command, File
from tests.apps.ctc_speech.conftest import tone


def speakers(corpus: Corpus, split: str) -> set[str]:
    return {item.speaker for item in corpus.splits[split]}  # type: ignore[index]


def test_splits_of_an4_have_their_sizes_and_speakers_of_their_own(
    shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = load_corpus("an4", shared_data("speech/an4") / "speech", cache=tmp_path)
    assert {name: len(of) for name, of in corpus.splits.items()} == {
        "train": 846,
        "dev": 102,
        "test": 130,
    }
    assert len(corpus.inventory) == 33
    assert not speakers(corpus, "train") & (speakers(corpus, "dev") | speakers(corpus, "test"))
    assert corpus.splits["train"][0].phones == ("Y", "EH", "S")


def test_splits_of_fsdd_have_their_sizes(
    shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = load_corpus("fsdd", shared_data("speech/fsdd") / "speech", cache=tmp_path)
    assert [len(of) for of in corpus.splits.values()] == [2_000, 500, 500]
    assert len(read_audio(corpus.splits["test"][0].source)) > 1_600


def write_published_an4(folder: Path) -> None:
    """AN4 as it is published, NIST SPHERE: three speakers to train, one to test, a clip each."""
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "an4.dic").write_text("A AH\nA(2) EY\nB B IY\n")
    for name, group, speakers in (
        ("an4_train", "an4_clstk", ("fash", "fbbh", "mblw")),
        ("an4_test", "an4test_clstk", ("mjgm",)),
    ):
        clips = [f"{group}/{speaker}/an1-{speaker}-b" for speaker in speakers]
        for clip in clips:
            path = folder / "wav" / f"{clip}.sph"
            path.parent.mkdir(parents=True)
            soundfile.write(path, tone(440, 0.5), 16_000, format="NIST", subtype="PCM_16")
        lines = [f"<s> A B </s> ({clip.split('/')[-1]})" for clip in clips]
        (folder / "etc" / f"{name}.fileids").write_text("\n".join(clips) + "\n")
        (folder / "etc" / f"{name}.transcription").write_text("\n".join(lines) + "\n")


def test_an4_as_it_is_published(tmp_path: Path) -> None:
    write_published_an4(tmp_path / "an4")
    corpus = load_corpus("an4", tmp_path, cache=tmp_path)
    assert [len(of) for of in corpus.splits.values()] == [2, 1, 1]
    (item,) = corpus.splits["test"]
    assert (item.speaker, item.words, item.phones) == ("mjgm", ("A", "B"), ("AH", "B", "IY"))
    np.testing.assert_allclose(read_audio(item.source), tone(440, 0.5), atol=1 / 32_000)
    for content in ("an1-mjgm-b", "/an1-mjgm-b"):
        (tmp_path / "an4" / "etc" / "an4_test.fileids").write_text(content)
        with pytest.raises(ValueError, match="expected GROUP/SPEAKER/CLIP on a line"):
            load_corpus("an4", tmp_path, cache=tmp_path)
    (tmp_path / "an4" / "etc" / "an4_test.fileids").write_text("an4test_clstk/mjgm/an1-mjgm-b")
    item.source.path.unlink()  # type: ignore[attr-defined]
    (item,) = load_corpus("an4", tmp_path, cache=tmp_path).splits["test"]
    with pytest.raises(FileNotFoundError, match=r"an1-mjgm-b\.wav: expected an audio file"):
        read_audio(item.source)


def test_synthetic_speech_is_made_once(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    corpus = load_corpus("synthetic", None, cache=tmp_path, utterances=8)
    (folder,) = tmp_path.iterdir()
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = load_corpus("synthetic", None, cache=tmp_path, utterances=8)
    assert corpus == again and files == {path: path.stat().st_mtime_ns for path in files}
    assert [len(of) for of in corpus.splits.values()] == [8, 1, 1]
    assert all(len(read_audio(item.source)) > 4_000 for item in corpus.splits["train"])


def test_without_the_synthesizer_the_error_names_what_installs_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    file = "apps/ctc_speech/requirements-synthetic.txt"
    with pytest.raises(ValueError, match=f"got none installed; pip install -r {file}"):
        load_corpus("synthetic", None, cache=tmp_path, utterances=8)
    assert "espeakng-loader" in (repository / file).read_text().splitlines()


def test_phones_for_the_synthesizer() -> None:
    assert mnemonics(["S", "EH", "V", "AH", "N"]) == "s'EvVn"


def test_a_kaldi_folder_is_read_and_a_speaker_held_out(tones: Path, tmp_path: Path) -> None:
    corpus = load_corpus("kaldi", tones, cache=tmp_path)
    assert corpus.inventory == ("HIGH", "LOW", "MID")
    assert len(speakers(corpus, "train")) == 2 and len(speakers(corpus, "dev")) == 1


def test_kaldi_segments_arks_and_commands(tmp_path: Path) -> None:
    (tmp_path / "wav.scp").write_text("a /x/a.ark:17\nb /x/b.wav\nc sph2pipe /x/c |\n")
    (tmp_path / "text").write_text("a-1 ONE TWO\na-2\nb-1 ONE\n")
    (tmp_path / "segments").write_text("a-1 a 0.5 1.5\na-2 a 2 -1\nb-1 b 0 1\n")
    with pytest.raises(ValueError, match="--run-commands"):
        read_data_folder(tmp_path)
    one, two, three = read_data_folder(tmp_path, run_commands=True)
    assert one.source == Ark(Path("/x/a.ark"), 17) and (one.start, one.end) == (0.5, 1.5)
    assert two.words == () and two.end is None
    assert three.source == File(Path("/x/b.wav"))
    (tmp_path / "segments").write_text("c-1 c 0 1\n")
    with pytest.raises(ValueError, match="a line for 'c-1'"):
        read_data_folder(tmp_path, run_commands=True)
    (tmp_path / "segments").unlink()
    (tmp_path / "text").write_text("a X\nb X\nc X\n")
    assert read_data_folder(tmp_path, run_commands=True)[2].source == Command("sph2pipe /x/c")


def test_kaldi_lists_have_blanks_or_tabs(tmp_path: Path) -> None:
    (tmp_path / "wav.scp").write_text("a\t/x/a b.wav\r\n")
    (tmp_path / "text").write_text("a\tÉTÉ  TWO\u2028THREE\n", encoding="utf-8")
    (tmp_path / "utt2spk").write_text("a \t s\n")
    (item,) = read_data_folder(tmp_path)
    assert (item.id, item.speaker, item.source) == ("a", "s", File(Path("/x/a b.wav")))
    assert item.words == ("ÉTÉ", "TWO", "THREE")


# Of a list of a data folder what its last line becomes, and what the error says.
LINES = [
    ("wav.scp", "a /x/c.wav", "wav.scp, line 2: expected each name once, got 'a'"),
    ("text", "a ONE", "text, line 2: expected each name once"),
    ("text", "", "text: expected a line for 'b'"),
    ("utt2spk", "", "utt2spk: expected a line for 'b'"),
    ("segments", "a a 0 1", "segments, line 2: expected each name once"),
    ("segments", "b c 0 1", "wav.scp: expected the recording 'c'"),
    ("segments", "b b 0", "a recording, a start and an end in seconds"),
    *(
        ("segments", f"b b {times}", "segments, b: expected a start of at least 0 and an end after")
        for times in ("nan nan", "0 inf", "0 nan", "-1 1", "2 1", "1 1", "inf inf")
    ),
]


@pytest.mark.parametrize(("file", "line", "sentence"), LINES)
def test_lists_with_a_fault_are_refused(
    file: str, line: str, sentence: str, tmp_path: Path
) -> None:
    lists = {
        "wav.scp": ["a /x/a.wav", "b /x/b.wav"],
        "text": ["a ONE", "b TWO"],
        "utt2spk": ["a s", "b t"],
        "segments": ["a a 0 1", "b b 0 -1"],
    }
    for name, lines in lists.items():
        (tmp_path / name).write_text("\n".join(lines))
    assert len(read_data_folder(tmp_path)) == 2
    (tmp_path / file).write_text("\n".join(filter(None, [lists[file][0], line])))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_data_folder(tmp_path)
    (tmp_path / file).write_bytes(b"a \xff 1")
    with pytest.raises(ValueError, match=f"{file}: expected text in UTF-8"):
        read_data_folder(tmp_path)


def test_missing_words_are_refused_or_counted() -> None:
    lexicon, skipped = parse_lexicon(["a AH"], "x"), Counter[str]()
    items = [Utterance(word, "s", File(Path("x")), (word,)) for word in ("a", "b")]
    with pytest.raises(ValueError, match="none of 'b'"):
        with_phones(items, lexicon, "refuse", skipped)
    assert [item.id for item in with_phones(items, lexicon, "skip", skipped)] == ["a"]
    assert skipped == {"a word that the lexicon lacks": 1}


def test_one_speaker_has_no_dev_set() -> None:
    with pytest.raises(ValueError, match="at least 2 speakers"):
        cut_dev([Utterance("a", "s", File(Path("x")))])


@pytest.mark.parametrize("name", ["an4", "fsdd", "kaldi"])
def test_a_missing_corpus_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data-dir"):
        load_corpus(name, None, cache=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"got (no file|none)"):
        load_corpus(name, tmp_path, cache=tmp_path)  # type: ignore[arg-type]
