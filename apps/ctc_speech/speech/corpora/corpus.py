"""What every corpus gives: utterances in three splits, and an inventory of phones."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from linattn_core.errors import expected
from speech.lexicon import Lexicon, Phones
from speech.sources import Source

Split = Literal["train", "dev", "test"]
BadInput = Literal["refuse", "skip"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

_DEV_SHARE = 9  # one in this many speakers of the training set goes to dev


@dataclass(frozen=True)
class Utterance:
    """One recording of one speaker.

    Attributes:
        id: unique in its corpus.
        speaker: whose frames are normalized together.
        source: where the audio is.
        words: as the transcript has them; empty where it has phones.
        phones: what is said.
        start, end: seconds of the source; all of it if not given.
    """

    id: str
    speaker: str
    source: Source
    words: tuple[str, ...] = ()
    phones: Phones = ()
    start: float = 0.0
    end: float | None = None


@dataclass(frozen=True)
class Corpus:
    """Utterances by split, their phones in an inventory.

    Attributes:
        name: as --corpus takes it.
        inventory: the phones, in the order of their classes 1, 2, ...; 0 is the blank.
        splits: the utterances.
        skipped: by split and reason, how many utterances were left out; those of a dev set that
            is cut from train count under train.
    """

    name: str
    inventory: Phones
    splits: Mapping[Split, Sequence[Utterance]]
    skipped: Mapping[Split, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split, utterances in self.splits.items():
            if not utterances:
                raise ValueError(expected(f"{self.name}, {split}", "an utterance", "none"))

    def classes(self, phones: Phones) -> list[int]:
        """The numbers of phones."""
        number = {phone: index for index, phone in enumerate(self.inventory, start=1)}
        return [number[phone] for phone in phones]

    def transcripts(self, split: Split) -> list[list[int]]:
        """The phones of each utterance of a split, as numbers."""
        return [self.classes(item.phones) for item in self.splits[split]]

    def digest(self) -> str:
        """A hash of the name, the inventory, and each split's utterances by id and phones.

        Words, speakers and audio do not change it.
        """
        said = {split: [[x.id, x.phones] for x in self.splits[split]] for split in self.splits}
        content = json.dumps([self.name, self.inventory, said], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def add_phones(
    utterances: Sequence[Utterance], lexicon: Lexicon, bad_input: BadInput, skipped: Counter[str]
) -> list[Utterance]:
    """The utterances with the phones of their words.

    Args:
        bad_input: whether words that the lexicon lacks are refused, all named in one error, or
            their utterances left out.
        skipped: counts those.
    """
    if bad_input == "refuse":
        lexicon.require(word for utterance in utterances for word in utterance.words)
    known = [item for item in utterances if not lexicon.missing(item.words)]
    if len(known) < len(utterances):
        skipped["a word that the lexicon lacks"] += len(utterances) - len(known)
    return [replace(item, phones=lexicon.phones(item.words)) for item in known]


def cut_dev(train: Iterable[Utterance]) -> tuple[list[Utterance], list[Utterance]]:
    """The training set split by speaker: those that stay, and a ninth of the speakers as dev.

    A hash of its name decides where a speaker goes: the split is the same on every machine.
    """
    utterances = list(train)
    speakers = sorted(
        {item.speaker for item in utterances},
        key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
    )
    if len(speakers) < 2:
        wanted = "at least 2 speakers, to cut a dev set from"
        raise ValueError(expected("the training set", wanted, len(speakers)))
    dev = set(speakers[: max(1, round(len(speakers) / _DEV_SHARE))])
    remaining = [item for item in utterances if item.speaker not in dev]
    return remaining, [item for item in utterances if item.speaker in dev]
