"""Speech that is synthesized from phones: they are known exactly, and nothing is downloaded.

Random words, several voices, speeds and noise levels. No voice is in two splits. The synthesizer is
eSpeak NG, called as a library: phones in, samples out.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import soundfile

from linattn_core.errors import expected
from linattn_models.basics.files import replace_files
from speech.audio import RATE, Samples, resample
from speech.corpora.corpus import SPLITS, Split, Utterance
from speech.lexicon import Lexicon, Phones, read_lexicon
from speech.sources import File

VERSION = 1  # of what is made; a new one makes it again
INDEX = "utterances.json"
VOICES: dict[Split, tuple[str, ...]] = {
    "train": ("m1", "m2", "m3", "m4", "m5", "f1", "f2", "f3"),
    "dev": ("m6", "f4"),
    "test": ("m7", "f5"),
}
HELD_OUT_SHARE = 8  # dev and test have an eighth of the training utterances each
SHORTEST, LONGEST = 2, 6  # words of an utterance

# The phones of CMUdict as eSpeak writes them between [[ and ]]; a vowel that has the stress comes
# after a '.
PHONEMES = {
    "AA": "A:", "AE": "a", "AH": "V", "AO": "O:", "AW": "aU", "AY": "aI", "B": "b", "CH": "tS",
    "D": "d", "DH": "D", "EH": "E", "ER": "3:", "EY": "eI", "F": "f", "G": "g", "HH": "h",
    "IH": "I", "IY": "i:", "JH": "dZ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "N",
    "OW": "oU", "OY": "OI", "P": "p", "R": "r", "S": "s", "SH": "S", "T": "t", "TH": "T",
    "UH": "U", "UW": "u:", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "Z",
}  # fmt: skip

_SYNCHRONOUS, _RATE_PARAMETER, _PITCH_PARAMETER = 2, 1, 3
_UTF8, _PHONEMES = 1, 0x100
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


@dataclass(frozen=True)
class Plan:
    """What is said in one utterance, and how."""

    id: str
    voice: str
    words: tuple[str, ...]
    rate: int
    pitch: int
    noise_db: float


def load_synthetic(cache: Path, utterances: int) -> tuple[dict[Split, list[Utterance]], Lexicon]:
    """The corpus with this many training utterances, made in `cache` if it is not there yet."""
    lexicon = read_lexicon(Path(__file__).with_name("words.dict"))
    folder = cache / f"synthetic-{VERSION}-{utterances}"
    index = folder / INDEX
    if not index.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with replace_files(cache, folder.name) as fresh:  # one process at a time
            if not index.exists():  # another process may have made it while this one waited
                _make(fresh / folder.name, utterances, lexicon)
    try:
        plans = pydantic.TypeAdapter(dict[Split, list[Plan]]).validate_json(index.read_bytes())
        splits = {split: [_utterance(x, folder) for x in plans[split]] for split in SPLITS}
    except (ValueError, KeyError) as error:
        advice = f"remove {folder}, and it is made again"
        raise ValueError(expected(str(index), "the list of utterances", error, advice)) from None
    return splits, lexicon


def _utterance(plan: Plan, folder: Path) -> Utterance:
    return Utterance(plan.id, plan.voice, File(folder / f"{plan.id}.flac"), plan.words)


def plan_split(split: Split, count: int, words: list[str]) -> list[Plan]:
    """What is said in the first `count` utterances of a split: always the same."""
    draws = np.random.default_rng(zlib.crc32(split.encode()))
    plans = []
    for index in range(count):
        length = int(draws.integers(SHORTEST, LONGEST, endpoint=True))
        said = tuple(str(word) for word in draws.choice(words, length))
        voice = str(draws.choice(VOICES[split]))
        rate, pitch = int(draws.integers(120, 220)), int(draws.integers(30, 70))
        noise = float(draws.uniform(15.0, 40.0))
        plans.append(Plan(f"{split}-{index:05d}", voice, said, rate, pitch, round(noise, 1)))
    return plans


def add_noise(samples: Samples, decibels: float, seed: int) -> Samples:
    """The samples with white noise, `decibels` below their mean power."""
    draws = np.random.default_rng(seed)
    level = np.sqrt(np.mean(np.square(samples))) * 10 ** (-decibels / 20)
    noise = draws.standard_normal(len(samples), dtype=np.float32)
    return np.clip(samples + np.float32(level) * noise, -1.0, 1.0).astype(np.float32)


def _make(folder: Path, utterances: int, lexicon: Lexicon) -> None:
    synthesizer = Synthesizer()
    words = sorted(lexicon.pronunciations)
    counts = {split: max(1, utterances // HELD_OUT_SHARE) for split in SPLITS}
    plans = {x: plan_split(x, n, words) for x, n in (counts | {"train": utterances}).items()}
    folder.mkdir()
    for plan in (plan for split in plans.values() for plan in split):
        phones = [lexicon.pronunciations[word] for word in plan.words]
        clean = synthesizer.speak(phones, f"en-us+{plan.voice}", plan.rate, plan.pitch)
        noisy = add_noise(clean, plan.noise_db, zlib.crc32(plan.id.encode()))
        soundfile.write(folder / f"{plan.id}.flac", noisy, RATE)
    index = {split: [asdict(plan) for plan in of] for split, of in plans.items()}
    (folder / INDEX).write_bytes(pydantic.TypeAdapter(dict).dump_json(index))


class Synthesizer:
    """Speaks phones; one at a time in a process, as the library has global state."""

    def __init__(self) -> None:
        self._library, self._rate = _load_espeak()
        self._pieces: list[np.ndarray] = []
        self._callback = _CALLBACK(self._take)  # referenced here: the library calls it later
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, words: Sequence[Phones], voice: str, rate: int, pitch: int) -> Samples:
        """The samples at 16 kHz, in -1..1, of words given by their phones.

        Args:
            words: the phones of each, from `PHONEMES`.
            voice: such as "en-us+f2".
            rate: words per minute.
            pitch: 0 to 100.
        """
        library = self._library
        if library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(expected("voice", "a voice of eSpeak NG", voice))
        library.espeak_SetParameter(_RATE_PARAMETER, rate, 0)
        library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        text = " ".join(f"[[{spell_for_espeak(word)}]]" for word in words).encode()
        self._pieces.clear()
        library.espeak_Synth(text, len(text) + 1, 0, 1, 0, _UTF8 | _PHONEMES, None, None)
        library.espeak_Synchronize()
        samples = np.concatenate(self._pieces) / np.float32(32_768.0)
        return resample(samples.astype(np.float32), self._rate)

    def _take(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


def spell_for_espeak(phones: Sequence[str]) -> str:
    """A word's phones as eSpeak writes them, the stress on the first vowel."""
    stressed = next((place for place, phone in enumerate(phones) if phone[0] in "AEIOU"), None)
    return "".join("'" * (at == stressed) + PHONEMES[phone] for at, phone in enumerate(phones))


def _load_espeak() -> tuple[Any, int]:
    """The library, and its samples per second."""
    try:
        import espeakng_loader
    except ImportError:
        file = "apps/ctc_speech/requirements-synthetic.txt"
        advice = f"pip install -r {file} (under the GPL), or name another --corpus"
        wanted = "the synthesizer eSpeak NG"
        raise ValueError(expected("--corpus synthetic", wanted, "none installed", advice)) from None
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0:
        raise ValueError(expected("eSpeak NG", "samples per second", rate, "install it again"))
    return library, rate
