"""eSpeak NG, called as a library: phones in, samples out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from linattn_core.errors import expected
from speech.audio import Samples, at_rate

_SYNCHRONOUS, _RATE_PARAMETER, _PITCH_PARAMETER = 2, 1, 3
_UTF8, _PHONEMES = 1, 0x100
_SUCCESS = 0

# The phones of CMUdict as eSpeak writes them between [[ and ]]; a vowel that has the stress comes
# after a '.
PHONEMES = {
    "AA": "A:", "AE": "a", "AH": "V", "AO": "O:", "AW": "aU", "AY": "aI", "B": "b", "CH": "tS",
    "D": "d", "DH": "D", "EH": "E", "ER": "3:", "EY": "eI", "F": "f", "G": "g", "HH": "h",
    "IH": "I", "IY": "i:", "JH": "dZ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "N",
    "OW": "oU", "OY": "OI", "P": "p", "R": "r", "S": "s", "SH": "S", "T": "t", "TH": "T",
    "UH": "U", "UW": "u:", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "Z",
}  # fmt: skip
VOWELS = frozenset(phone for phone in PHONEMES if phone[0] in "AEIOU")

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Synthesizer:
    """Speaks phones; one at a time in a process, as the library has global state.

    Raises:
        ValueError: eSpeak NG is not installed, or does not start.
    """

    def __init__(self) -> None:
        self._library, self._rate = _started()
        self._pieces: list[np.ndarray] = []
        self._callback = _Callback(self._take)  # referenced here: the library calls it later
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, words: Sequence[Sequence[str]], voice: str, rate: int, pitch: int) -> Samples:
        """The samples at 16 kHz, in -1..1, of words given by their phones.

        Args:
            words: the phones of each, from `PHONEMES`.
            voice: such as "en-us+f2".
            rate: words per minute.
            pitch: 0 to 100.
        """
        library = self._library
        if library.espeak_SetVoiceByName(voice.encode()) != _SUCCESS:
            raise ValueError(expected("voice", "a voice of eSpeak NG", voice))
        library.espeak_SetParameter(_RATE_PARAMETER, rate, 0)
        library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        text = " ".join(f"[[{mnemonics(word)}]]" for word in words).encode()
        self._pieces.clear()
        library.espeak_Synth(text, len(text) + 1, 0, 1, 0, _UTF8 | _PHONEMES, None, None)
        library.espeak_Synchronize()
        samples = np.concatenate(self._pieces) / np.float32(32_768.0)
        return at_rate(samples.astype(np.float32), self._rate)

    def _take(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


def mnemonics(phones: Sequence[str]) -> str:
    """A word's phones as eSpeak writes them, the stress on the first vowel."""
    stressed = next((place for place, phone in enumerate(phones) if phone in VOWELS), None)
    return "".join("'" * (at == stressed) + PHONEMES[phone] for at, phone in enumerate(phones))


def _started() -> tuple[Any, int]:
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
