"""Speech that is synthesized from phones: they are known exactly, and nothing is downloaded.

Random words, several voices, speeds and noise levels. No voice is in two splits.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from linattn_core.errors import expected
from linattn_models.files import new_folder
from speech.audio import RATE, Samples
from speech.corpora.corpus import SPLITS, Corpus, Split, Utterance
from speech.corpora.synthesizer import PHONEMES, Synthesizer
from speech.lexicon import Lexicon, read_lexicon
from speech.sources import File

VERSION = 1  # of what is made; a new one makes it again
INDEX = "utterances.json"
WORDS = Path(__file__).with_name("words.dict")
VOICES: dict[Split, tuple[str, ...]] = {
    "train": ("m1", "m2", "m3", "m4", "m5", "f1", "f2", "f3"),
    "dev": ("m6", "f4"),
    "test": ("m7", "f5"),
}
HELD_OUT_SHARE = 8  # dev and test have an eighth of the training utterances each
SHORTEST, LONGEST = 2, 6  # words of an utterance


@dataclass(frozen=True)
class Plan:
    """What is said in one utterance, and how."""

    id: str
    voice: str
    words: tuple[str, ...]
    rate: int
    pitch: int
    noise_db: float


def load_synthetic(cache: Path, utterances: int) -> Corpus:
    """The corpus with this many training utterances, made in `cache` if it is not there yet.

    Raises:
        ValueError: the synthesizer is needed and not installed.
        OSError: the disk refuses.
    """
    lexicon = read_lexicon(WORDS)
    folder = cache / f"synthetic-{VERSION}-{utterances}"
    if not (folder / INDEX).exists():
        cache.mkdir(parents=True, exist_ok=True)
        _make(folder, utterances, lexicon)
    splits = {split: _read(folder, split, lexicon) for split in SPLITS}
    return Corpus("synthetic", tuple(sorted(PHONEMES)), splits)


def plans(split: Split, count: int, lexicon_words: list[str]) -> list[Plan]:
    """What is said in the first `count` utterances of a split: always the same."""
    draws = np.random.default_rng(zlib.crc32(split.encode()))
    made = []
    for index in range(count):
        length = int(draws.integers(SHORTEST, LONGEST, endpoint=True))
        words = tuple(str(word) for word in draws.choice(lexicon_words, length))
        voice = str(draws.choice(VOICES[split]))
        rate, pitch = int(draws.integers(120, 220)), int(draws.integers(30, 70))
        noise = float(draws.uniform(15.0, 40.0))
        made.append(Plan(f"{split}-{index:05d}", voice, words, rate, pitch, round(noise, 1)))
    return made


def with_noise(samples: Samples, decibels: float, seed: int) -> Samples:
    """The samples with white noise, `decibels` below their mean power."""
    draws = np.random.default_rng(seed)
    level = np.sqrt(np.mean(np.square(samples))) * 10 ** (-decibels / 20)
    noise = draws.standard_normal(len(samples), dtype=np.float32)
    return np.clip(samples + np.float32(level) * noise, -1.0, 1.0).astype(np.float32)


def _make(folder: Path, utterances: int, lexicon: Lexicon) -> None:
    synthesizer = Synthesizer()
    words = lexicon.words()
    held_out = max(1, utterances // HELD_OUT_SHARE)
    with new_folder(folder) as temporary:
        index: dict[str, list[dict[str, object]]] = {}
        for split in SPLITS:
            made = plans(split, utterances if split == "train" else held_out, words)
            for plan in made:
                phones = [lexicon.alternatives(word)[0] for word in plan.words]
                clean = synthesizer.speak(phones, f"en-us+{plan.voice}", plan.rate, plan.pitch)
                noisy = with_noise(clean, plan.noise_db, zlib.crc32(plan.id.encode()))
                soundfile.write(temporary / f"{plan.id}.flac", noisy, RATE)
            index[split] = [vars(plan) for plan in made]
        (temporary / INDEX).write_text(json.dumps(index))


def _read(folder: Path, split: Split, lexicon: Lexicon) -> tuple[Utterance, ...]:
    path = folder / INDEX
    try:
        items = json.loads(path.read_text())[split]
        return tuple(
            Utterance(
                item["id"],
                item["voice"],
                File(folder / f"{item['id']}.flac"),
                tuple(item["words"]),
                lexicon.phones(item["words"]),
            )
            for item in items
        )
    except (ValueError, KeyError, TypeError) as error:
        advice = f"remove {folder}, and it is made again"
        raise ValueError(expected(str(path), "the list of utterances", error, advice)) from error
