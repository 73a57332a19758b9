"""CMU AN4: 84 people spell names and say numbers, dates and commands; 948 and 130 utterances."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from linattn_core.errors import expected, quote
from speech.corpora.corpus import BadInput, Corpus, Utterance, cut_dev, with_phones
from speech.lexicon import read_lexicon
from speech.sources import File, Member, Source, require_file, text_lines

PAGE = "https://github.com/cmusphinx/an4"
ARCHIVE = "an4-wav.tar.xz"
NOT_SPOKEN = {"<s>", "</s>", "<sil>"}

_LINE = re.compile(r"(.*)\(([^()\s]+)\)\s*")
_PUBLISHED = {"train": "an4_train", "test": "an4_test"}


def load_an4(folder: Path, bad_input: BadInput) -> Corpus:
    """AN4 from its folder: etc/ beside the audio.

    The audio is a tree wav/an4_clstk/SPEAKER/CLIP.wav, as published (.sph likewise), or the same
    tree within an4-wav.tar.xz, which is read in place. One speaker of nine of the published
    training set is the dev set.

    Raises:
        ValueError, OSError: naming the file that is missing or does not hold what it should.
    """
    lexicon = read_lexicon(_published(folder, "an4.dic"))
    skipped: Counter[str] = Counter()
    published, test = (
        with_phones(_utterances(folder, name), lexicon, bad_input, skipped)
        for name in _PUBLISHED.values()
    )
    train, dev = cut_dev(published)
    splits = {"train": train, "dev": dev, "test": tuple(test)}
    return Corpus("an4", lexicon.inventory, splits, skipped)  # type: ignore[arg-type]


def _utterances(folder: Path, name: str) -> list[Utterance]:
    listed = _published(folder, f"{name}.fileids")
    path = _published(folder, f"{name}.transcription")
    transcripts = dict(_transcript(line, path) for line in text_lines(path) if line)
    result = []
    for clip in filter(None, map(str.strip, text_lines(listed))):
        # The "" is the speaker of a line without a slash.
        *_, speaker, key = ("", *clip.split("/"))
        if not speaker:
            raise ValueError(expected(str(listed), "GROUP/SPEAKER/CLIP on a line", quote(clip)))
        if key not in transcripts:
            raise ValueError(expected(str(path), f"the transcript of {key}", "none"))
        source = _source(folder, clip)
        result.append(Utterance(key, speaker, source, transcripts[key]))
    return result


def _transcript(line: str, path: Path) -> tuple[str, tuple[str, ...]]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(expected(str(path), "words and (clip) on a line", quote(line)))
    return match[2], tuple(word for word in match[1].split() if word not in NOT_SPOKEN)


def _source(folder: Path, clip: str) -> Source:
    archive = folder / ARCHIVE
    if archive.exists():
        return Member(archive, f"wav/{clip}.wav")
    sphere = folder / "wav" / f"{clip}.sph"
    return File(sphere if sphere.exists() else folder / "wav" / f"{clip}.wav")


def _published(folder: Path, name: str) -> Path:
    path = folder / "etc" / name
    require_file(path, "a file of AN4", f"take AN4 from {PAGE}, and name its folder by --data-dir")
    return path
