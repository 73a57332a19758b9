"""Two free corpora, as they are published.

CMU AN4: 84 people spell names and say numbers, dates and commands; 948 and 130 utterances.
Free spoken digits: six people say each of the ten digits fifty times.
"""

from __future__ import annotations

import re
from pathlib import Path

from linattn_core.errors import expected, quote
from speech.corpora.corpus import Split, Utterance
from speech.lexicon import Lexicon, parse_lexicon, read_lexicon, read_lines, require_file
from speech.sources import File, Member, Source

AN4_PAGE = "https://github.com/cmusphinx/an4"
AN4_ARCHIVE = "an4-wav.tar.xz"
NOT_SPOKEN = {"<s>", "</s>", "<sil>"}

FSDD_PAGE = "https://github.com/Jakobovski/free-spoken-digit-dataset"
FSDD_SPLITS: dict[str, Split] = {"theo": "dev", "yweweler": "test"}  # the others train
DIGITS = {
    "ZERO": "Z IH R OW", "ONE": "W AH N", "TWO": "T UW", "THREE": "TH R IY", "FOUR": "F AO R",
    "FIVE": "F AY V", "SIX": "S IH K S", "SEVEN": "S EH V AH N", "EIGHT": "EY T", "NINE": "N AY N",
}  # fmt: skip

_LINE = re.compile(r"(.*)\(([^()\s]+)\)\s*")


def load_an4(folder: Path) -> tuple[dict[Split, list[Utterance]], Lexicon]:
    """AN4 from its folder, without a dev set: etc/ beside the audio.

    The audio is a tree wav/an4_clstk/SPEAKER/CLIP.wav, as published (.sph likewise), or the same
    tree within an4-wav.tar.xz, which is read in place.
    """
    lexicon = read_lexicon(_an4_file(folder, "an4.dic"))
    splits: tuple[Split, ...] = ("train", "test")
    return {split: _an4_utterances(folder, f"an4_{split}") for split in splits}, lexicon


def _an4_utterances(folder: Path, name: str) -> list[Utterance]:
    clips = _an4_file(folder, f"{name}.fileids")
    path = _an4_file(folder, f"{name}.transcription")
    transcripts = dict(_an4_transcript(line, path) for line in read_lines(path) if line)
    result = []
    for clip in filter(None, map(str.strip, read_lines(clips))):
        # The "" is the speaker of a line without a slash.
        *_, speaker, key = ("", *clip.split("/"))
        if not speaker:
            raise ValueError(expected(str(clips), "GROUP/SPEAKER/CLIP on a line", quote(clip)))
        if key not in transcripts:
            raise ValueError(expected(str(path), f"the transcript of {key}", "none"))
        result.append(Utterance(key, speaker, _an4_source(folder, clip), transcripts[key]))
    return result


def _an4_transcript(line: str, path: Path) -> tuple[str, tuple[str, ...]]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(expected(str(path), "words and (clip) on a line", quote(line)))
    return match[2], tuple(word for word in match[1].split() if word not in NOT_SPOKEN)


def _an4_source(folder: Path, clip: str) -> Source:
    archive = folder / AN4_ARCHIVE
    if archive.exists():
        return Member(archive, f"wav/{clip}.wav")
    sphere = folder / "wav" / f"{clip}.sph"
    return File(sphere if sphere.exists() else folder / "wav" / f"{clip}.wav")


def _an4_file(folder: Path, name: str) -> Path:
    path = folder / "etc" / name
    advice = f"take AN4 from {AN4_PAGE}, and name its folder by --data-dir"
    require_file(path, "a file of AN4", advice)
    return path


def load_fsdd(folder: Path) -> tuple[dict[Split, list[Utterance]], Lexicon]:
    """The recordings of digits in `folder`/recordings, DIGIT_SPEAKER_INDEX.wav, by speaker."""
    paths = sorted((folder / "recordings").glob("*.wav"))
    if not paths:
        wanted = "recordings of digits"
        advice = f"take them from {FSDD_PAGE}, and name their folder by --data-dir"
        raise FileNotFoundError(expected(str(folder / "recordings"), wanted, "none", advice))
    lexicon = parse_lexicon((f"{word} {phones}" for word, phones in DIGITS.items()), "the digits")
    words = list(DIGITS)
    splits: dict[Split, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for path in paths:
        digit, speaker, *_ = (*path.stem.split("_"), "")
        if len(digit) != 1 or not digit.isdecimal() or not speaker:
            wanted = "the name DIGIT_SPEAKER_INDEX"
            raise ValueError(expected(str(path), wanted, quote(path.name)))
        said = (words[int(digit)],)
        utterance = Utterance(path.stem, speaker, File(path), said)
        splits[FSDD_SPLITS.get(speaker, "train")].append(utterance)
    return splits, lexicon
