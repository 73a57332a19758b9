"""Free spoken digits: six people say each of the ten digits fifty times."""

from __future__ import annotations

from pathlib import Path

from linattn_core.errors import expected, quote
from speech.corpora.corpus import BadInput, Corpus, Split, Utterance
from speech.lexicon import parse_lexicon
from speech.sources import File

PAGE = "https://github.com/Jakobovski/free-spoken-digit-dataset"
DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
DEV_SPEAKER, TEST_SPEAKER = "theo", "yweweler"

LEXICON = parse_lexicon(
    """ZERO Z IH R OW
ONE W AH N
TWO T UW
THREE TH R IY
FOUR F AO R
FIVE F AY V
SIX S IH K S
SEVEN S EH V AH N
EIGHT EY T
NINE N AY N""".splitlines(),
    "the digits",
)


def load_fsdd(folder: Path, bad_input: BadInput) -> Corpus:
    """The recordings in `folder`/recordings, DIGIT_SPEAKER_INDEX.wav, split by speaker.

    Raises:
        ValueError, OSError: no recordings, or one whose name says something else.
    """
    paths = sorted((folder / "recordings").glob("*.wav"))
    if not paths:
        advice = f"take them from {PAGE}, and name their folder by --data-dir"
        raise FileNotFoundError(
            expected(str(folder / "recordings"), "recordings of digits", "none", advice)
        )
    splits: dict[Split, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for path in paths:
        utterance = _utterance(path)
        splits[_split(utterance.speaker)].append(utterance)
    return Corpus("fsdd", LEXICON.inventory, {name: tuple(of) for name, of in splits.items()})


def _utterance(path: Path) -> Utterance:
    digit, _, rest = path.stem.partition("_")
    speaker, _, _ = rest.partition("_")
    if len(digit) != 1 or not digit.isdecimal() or not speaker:
        raise ValueError(expected(str(path), "the name DIGIT_SPEAKER_INDEX", quote(path.name)))
    words = (DIGITS[int(digit)],)
    return Utterance(path.stem, speaker, File(path), words, LEXICON.phones(words))


def _split(speaker: str) -> Split:
    if speaker == DEV_SPEAKER:
        return "dev"
    return "test" if speaker == TEST_SPEAKER else "train"
