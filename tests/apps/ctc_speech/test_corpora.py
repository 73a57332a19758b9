"""The corpora and their pronunciations: splits, and errors about what is missing."""

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
from speech.corpora import Corpus, CorpusFlags, Split, Utterance
from speech.corpora.corpus import add_labels, hold_out
from speech.corpora.kaldi import read_data_folder
from speech.lexicon import parse_lexicon, read_lexicon
from speech.sources import Ark, Command, File
from speech.units import Units, build_spelling
from tests.apps.ctc_speech.conftest import tone


def speakers(corpus: Corpus, split: Split) -> set[str]:
    return {item.speaker for item in corpus.splits[split]}


def sizes(corpus: Corpus) -> dict[str, int]:
    return {split: len(utterances) for split, utterances in corpus.splits.items()}


def test_an4_has_its_sizes_and_no_speaker_in_two_splits(
    shared_data: Callable[[str], Path],
) -> None:
    corpus = CorpusFlags(data_dir=shared_data("speech/an4") / "speech").read("an4")
    assert sizes(corpus) == {"train": 846, "dev": 102, "test": 130}
    assert len(corpus.units.inventory) == 33
    assert not speakers(corpus, "train") & (speakers(corpus, "dev") | speakers(corpus, "test"))
    assert corpus.splits["train"][0].labels == ("Y", "EH", "S")


def test_fsdd_has_its_sizes(shared_data: Callable[[str], Path]) -> None:
    corpus = CorpusFlags(data_dir=shared_data("speech/fsdd") / "speech").read("fsdd")
    assert sizes(corpus) == {"train": 2_000, "dev": 500, "test": 500}
    item = corpus.splits["test"][0]
    assert (item.words, item.labels) == (("ZERO",), ("Z", "IH", "R", "OW"))
    assert len(read_audio(item.source)) > 1_600


def write_published_an4(folder: Path) -> None:
    """AN4 as it is published, NIST SPHERE: three speakers to train, one to test, a clip each."""
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "an4.dic").write_text("A AH\nA(2) EY\nB B IY\n")
    for name, group, of in (
        ("an4_train", "an4_clstk", ("fash", "fbbh", "mblw")),
        ("an4_test", "an4test_clstk", ("mjgm",)),
    ):
        clips = [f"{group}/{speaker}/an1-{speaker}-b" for speaker in of]
        for clip in clips:
            path = folder / "wav" / f"{clip}.sph"
            path.parent.mkdir(parents=True)
            soundfile.write(path, tone(440, 0.5), 16_000, format="NIST", subtype="PCM_16")
        lines = [f"<s> A B </s> ({clip.split('/')[-1]})" for clip in clips]
        (folder / "etc" / f"{name}.fileids").write_text("\n".join(clips) + "\n")
        (folder / "etc" / f"{name}.transcription").write_text("\n".join(lines) + "\n")


def test_an4_as_it_is_published(tmp_path: Path) -> None:
    write_published_an4(tmp_path / "an4")
    flags = CorpusFlags(data_dir=tmp_path)
    corpus = flags.read("an4")
    assert sizes(corpus) == {"train": 2, "dev": 1, "test": 1}
    (item,) = corpus.splits["test"]
    assert (item.speaker, item.words, item.labels) == ("mjgm", ("A", "B"), ("AH", "B", "IY"))
    np.testing.assert_allclose(read_audio(item.source), tone(440, 0.5), atol=1 / 32_000)
    (tmp_path / "an4" / "etc" / "an4_test.fileids").write_text("/an1-mjgm-b")
    with pytest.raises(ValueError, match=r"an4_test\.fileids"):
        flags.read("an4")


def test_synthetic_speech_is_made_once(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    flags = CorpusFlags(cache=tmp_path)
    corpus = flags.read("synthetic", utterances=8)
    (folder,) = tmp_path.iterdir()
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert flags.read("synthetic", utterances=8) == corpus
    assert files == {path: path.stat().st_mtime_ns for path in files}
    assert sizes(corpus) == {"train": 8, "dev": 1, "test": 1}
    assert all(len(read_audio(item.source)) > 4_000 for item in corpus.splits["train"])
    (folder / "utterances.json").write_text("{}")
    with pytest.raises(ValueError, match=r"utterances\.json"):
        flags.read("synthetic", utterances=8)


def test_synthetic_needs_the_synthesizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ValueError, match="--corpus synthetic"):
        CorpusFlags(cache=tmp_path).read("synthetic", utterances=8)


def test_a_kaldi_folder_is_read_and_a_speaker_held_out(tones: Path) -> None:
    corpus = CorpusFlags(data_dir=tones).read("kaldi")
    assert corpus.units.inventory == ("HIGH", "LOW", "MID")
    assert len(speakers(corpus, "train")) == 2 and len(speakers(corpus, "dev")) == 1


def test_the_words_of_any_corpus_are_characters_or_pieces(tones: Path) -> None:
    flags = CorpusFlags(data_dir=tones)
    characters = flags.read("kaldi", kind="characters")
    assert characters.units.inventory == (*"DGHILMOW", "\u2581")
    item = characters.splits["train"][0]
    assert "".join(item.labels) == "\u2581".join(item.words)
    pieces = flags.read("kaldi", kind="bpe:20")
    assert set(characters.units.inventory) < set(pieces.units.inventory)
    item = pieces.splits["test"][0]
    assert pieces.units.text(item.labels).split() == list(item.words)


def test_kaldi_segments_arks_and_commands(tmp_path: Path) -> None:
    (tmp_path / "wav.scp").write_text("a /x/a.ark:17\nb\t/x/b c.wav\r\nc sph2pipe /x/c |\n")
    text = "a-1\tÉTÉ  TWO\u2028THREE\na-2\nb-1 ONE\n"
    (tmp_path / "text").write_text(text, encoding="utf-8")
    (tmp_path / "segments").write_text("a-1 a 0.5 1.5\na-2 a 2 -1\nb-1 b 0 1\n")
    with pytest.raises(ValueError, match="--run-commands"):
        read_data_folder(tmp_path)
    one, two, three = read_data_folder(tmp_path, run_commands=True)
    assert one.source == Ark(Path("/x/a.ark"), 17) and (one.start, one.end) == (0.5, 1.5)
    assert one.words == ("ÉTÉ", "TWO", "THREE") and one.speaker == "a-1"
    assert two.words == () and two.end is None
    assert three.source == File(Path("/x/b c.wav"))
    (tmp_path / "segments").unlink()
    (tmp_path / "text").write_text("a X\nb X\nc X\n")
    assert read_data_folder(tmp_path, run_commands=True)[2].source == Command("sph2pipe /x/c")


@pytest.mark.parametrize(
    ("file", "line", "where"),
    [
        ("wav.scp", "a /x/c.wav", "wav.scp, line 2"),
        ("wav.scp", f"b /x/b.ark:{10**30}", "wav.scp, b"),
        ("text", "a ONE", "text, line 2"),
        ("text", "", "text: .*'b'"),
        ("utt2spk", "", "utt2spk: .*'b'"),
        ("segments", "a a 0 1", "segments, line 2"),
        ("segments", "b c 0 1", "wav.scp: .*'c'"),
        ("segments", "b b 0", "segments, b"),
        *(
            ("segments", f"b b {x}", "segments, b")
            for x in ("0 nan", "0 1e308", "1e308 -1", "-1 1", "1 1")
        ),
    ],
)
def test_lists_with_a_fault_are_refused(file: str, line: str, where: str, tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match=where):
        read_data_folder(tmp_path)
    (tmp_path / file).write_bytes(b"a \xff 1")
    with pytest.raises(ValueError, match=file):
        read_data_folder(tmp_path)


@pytest.mark.parametrize("name", ["an4", "fsdd", "kaldi"])
def test_a_missing_corpus_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data-dir"):
        CorpusFlags().read(name)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
        CorpusFlags(data_dir=tmp_path).read(name)  # type: ignore[arg-type]


def test_one_speaker_has_no_dev_set() -> None:
    with pytest.raises(ValueError, match="the training set"):
        hold_out([Utterance("a", "s", File(Path("x")))], "dev")


def test_a_lexicon_has_the_first_pronunciation_without_stress() -> None:
    lines = [";;; a comment", "a AH0", "A(2) EY1", "yes Y EH1 S # note", ""]
    lexicon = parse_lexicon(lines, "x")
    assert lexicon.phones(["YES", "a"]) == ("Y", "EH", "S", "AH")
    assert lexicon.inventory == ("AH", "EH", "EY", "S", "Y")


@pytest.mark.parametrize("lines", [["word"], []])
def test_damaged_dictionaries_are_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r"x\.dict"):
        parse_lexicon(lines, "x.dict")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_words_have_accents_in_each_encoding(encoding: str, tmp_path: Path) -> None:
    """In UTF-8, the second bytes of Å and à are a line break and a blank of latin-1."""
    (tmp_path / "x.dict").write_bytes("Åse OW1 S AH0\r\nvoilà V W AA0 L AA1\r\n".encode(encoding))
    lexicon = read_lexicon(tmp_path / "x.dict")
    assert lexicon.phones(["åse", "VOILÀ"]) == ("OW", "S", "AH", "V", "W", "AA", "L", "AA")
    assert len(lexicon.pronunciations) == 2


def test_missing_words_are_all_named_or_their_utterances_counted() -> None:
    lexicon, skipped = parse_lexicon(["a AH"], "x"), Counter[str]()
    items = [Utterance(word, "s", File(Path("x")), (word,)) for word in ("a", "b", "c")]
    spelling = build_spelling(Units("phones", lexicon.inventory), lexicon)
    with pytest.raises(ValueError, match="x, b: expected words that the lexicon has, got 'b', 'c'"):
        add_labels("x", items, spelling, "refuse", skipped)
    assert [item.id for item in add_labels("x", items, spelling, "skip", skipped)] == ["a"]
    assert skipped == {"words that the lexicon lacks": 2}
