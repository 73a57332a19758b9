"""What every corpus gives: utterances in three splits, and their labels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from linattn_core.errors import expected, quote
from speech.sources import Source
from speech.units import Labels, Spelling, Units

Split = Literal["train", "dev", "test"]
BadInput = Literal["refuse", "skip"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
LATEST = 1e6  # seconds in a recording

_HELD_OUT_SHARE = 9  # one in this many speakers of the training set goes to a set that is missing
_SHOWN = 20  # of what has no label in an error


@dataclass(frozen=True)
class Utterance:
    """One recording of one speaker.

    Attributes:
        id: unique in its split.
        speaker: whose frames are normalized together.
        source: where the audio is.
        words: what is said, as the transcript has it.
        labels: the same in the units of the corpus.
        start, end: seconds of the source; all of it if not given.
    """

    id: str
    speaker: str
    source: Source
    words: tuple[str, ...] = ()
    labels: Labels = ()
    start: float = 0.0
    end: float | None = None


@dataclass(frozen=True)
class Corpus:
    """Utterances by split, and their labels.

    Attributes:
        name: as --corpus takes it.
        units: the labels.
        splits: the utterances.
        skipped: by split and reason, how many utterances were left out.
    """

    name: str
    units: Units
    splits: Mapping[Split, Sequence[Utterance]]
    skipped: Mapping[Split, Counter[str]]

    def __post_init__(self) -> None:
        for split, utterances in self.splits.items():
            if not utterances:
                raise ValueError(expected(f"{self.name}, {split}", "an utterance", "none"))

    def transcripts(self, split: Split) -> list[list[int]]:
        """The labels of each utterance of a split, as numbers."""
        return [self.units.numbers(item.labels) for item in self.splits[split]]

    def digest(self) -> str:
        """A hash of the name, the inventory, and each split's utterances by id and labels.

        Words, speakers and audio do not change it.
        """
        said = {split: [[x.id, x.labels] for x in self.splits[split]] for split in self.splits}
        content = json.dumps([self.name, self.units.inventory, said], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def add_labels(
    name: str,
    utterances: Sequence[Utterance],
    spelling: Spelling,
    bad_input: BadInput,
    skipped: Counter[str],
) -> list[Utterance]:
    """The utterances of the corpus `name` with the labels of their words.

    Args:
        bad_input: whether words that have no labels are refused, what they lack named in one error,
            or their utterances left out.
        skipped: counts those.
    """
    lacking = {x.id: missing for x in utterances if (missing := spelling.missing(x.words))}
    if lacking and bad_input == "refuse":
        missing = [quote(x) for x in dict.fromkeys(x for of in lacking.values() for x in of)]
        more = f" and {len(missing) - _SHOWN} more" * (len(missing) > _SHOWN)
        advice = "add them there, or leave out such utterances with --bad-input skip"
        wanted, got = f"{spelling.parts} that {spelling.owner} has", ", ".join(missing[:_SHOWN])
        raise ValueError(expected(f"{name}, {next(iter(lacking))}", wanted, got + more, advice))
    if lacking:
        skipped[f"{spelling.parts} that {spelling.owner} lacks"] += len(lacking)
    known = [item for item in utterances if item.id not in lacking]
    return [replace(item, labels=spelling.labels(item.words)) for item in known]


def hold_out(train: Sequence[Utterance], split: Split) -> tuple[list[Utterance], list[Utterance]]:
    """The training set split by speaker: those that stay, and a ninth of the speakers as `split`.

    A hash of its name decides where a speaker goes: the split is the same on every machine.
    """
    speakers = sorted(
        {item.speaker for item in train},
        key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
    )
    if len(speakers) < 2:
        wanted = f"at least 2 speakers, to cut a {split} set from"
        advice = f"give a {split} set of its own"
        raise ValueError(expected("the training set", wanted, len(speakers), advice))
    others = set(speakers[: max(1, round(len(speakers) / _HELD_OUT_SHARE))])
    remaining = [item for item in train if item.speaker not in others]
    return remaining, [item for item in train if item.speaker in others]


def require_span(where: str, start: float, end: float | None) -> None:
    """Refuses seconds that are no part of a recording; no end is that of the recording."""
    # NaN fails each comparison: it is refused.
    if not (0 <= start < LATEST and (end is None or start < end < LATEST)):
        wanted = f"a start from 0 to {LATEST:g} s and an end after it"
        raise ValueError(expected(where, wanted, f"{start} and {end}"))
