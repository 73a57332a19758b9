"""Recognize speech while a person talks: from a file, from standard input or from a microphone.

    python apps/ctc_speech/stream.py --run RUN FILE FILE
    python apps/ctc_speech/stream.py --run RUN --microphone --lexicon cmudict.dict
    sox FILE -t raw -e signed -b 16 -c 1 -r 16k - | python apps/ctc_speech/stream.py --run RUN -

The run is one of train.py --preset streaming. Each utterance is a line with its start and end in
seconds, its confidence and its words, or without --lexicon the phones of a run that recognizes
phones; on a terminal the line is redrawn while it grows. --chunk 4, 8 or 16 hears 160, 320 or 640
ms before it answers. A microphone needs the package sounddevice.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
import itertools
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from linattn_core.errors import expected
from linattn_lab.script import parse_flags, require_at_least, run_script
from speech.audio import RATE, Samples, read_audio
from speech.decoding import Decoding, Search
from speech.lexicon import read_lexicon
from speech.models import load_run
from speech.online import EndpointRules, OnlineRecognizer, Result
from speech.sources import File

PIECE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which audio, by which run."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """The recordings; - for 16-bit samples on standard input."""
    run: Path
    """Folder of the run that train.py made."""
    search: Annotated[Decoding, tyro.conf.arg(name="")]
    chunk: int = 8
    """Frames of 40 ms that are heard before an answer."""
    rate: int = RATE
    """Samples a second, of standard input and of the microphone."""
    microphone: bool = False
    """Listen to the microphone until Ctrl-C."""
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    pause: float = EndpointRules.pause
    """Seconds without a phone that end an utterance."""
    lexicon: Path | None = None
    """A dictionary in CMUdict's format, whose words are printed instead of phones."""


def main(flags: Flags) -> None:
    """Prints the utterances of every source."""
    require_at_least(flags, {"average": 1, "chunk": 1, "rate": 1})
    flags.search.check()
    if bool(flags.files) == flags.microphone:
        got = "both" if flags.microphone else "neither"
        raise ValueError(expected("FILE", "recordings, or --microphone", got))
    run = load_run(flags.run, flags.average)
    search = Search.read(flags.search, run.units.inventory)
    rules = EndpointRules(pause=flags.pause)
    lexicon = None if flags.lexicon is None else read_lexicon(flags.lexicon)
    recognizer = OnlineRecognizer(run, search, flags.chunk, rules, lexicon)
    if flags.microphone:
        show(recognizer, listen(flags.rate), flags.rate)
    for path in flags.files:
        if len(flags.files) > 1:
            print(f"{path}:")
        if str(path) == "-":
            show(recognizer, read_stdin(flags.rate), flags.rate)
        else:
            show(recognizer, cut(read_audio(File(path))), RATE)


def show(recognizer: OnlineRecognizer, pieces: Iterator[Samples], rate: int) -> None:
    """Prints a line for each utterance, redrawn on a terminal while it grows."""
    stream = recognizer.create_stream()
    redraw = sys.stdout.isatty()
    begin = "\r\x1b[K" * redraw  # in place of the line that grew
    for piece in itertools.chain(pieces, [None]):
        if piece is None:
            stream.input_finished()
        else:
            stream.accept_waveform(rate, piece)
        while recognizer.is_ready(stream):
            recognizer.decode([stream])
            if recognizer.is_endpoint(stream):
                print_result(recognizer.result(stream), begin, "\n")
                recognizer.reset(stream)
            elif redraw:
                print_result(recognizer.result(stream), begin, "")
    print_result(recognizer.result(stream), begin, "\n")


def print_result(result: Result, before: str, after: str) -> None:
    """One line: start, end, confidence and text; none where nothing was said, or no word."""
    line = ""
    if result.text:
        start, end = result.times[0][0], result.times[-1][1]
        line = f"{start:8.2f} {end:8.2f}  {result.confidence:.2f}  {result.text}{after}"
        if not after:  # a line that wraps could not be redrawn
            line = line[1 - shutil.get_terminal_size().columns :]
    print(before + line, end="", flush=True)


def cut(samples: Samples) -> Iterator[Samples]:
    """The samples in pieces, as they would arrive."""
    size = round(PIECE_SECONDS * RATE)
    return (samples[begin : begin + size] for begin in range(0, len(samples), size))


def read_stdin(rate: int) -> Iterator[Samples]:
    """16-bit samples of one channel, as they arrive."""
    size, rest = 2 * max(1, round(PIECE_SECONDS * rate)), b""
    while piece := sys.stdin.buffer.read(size):
        piece = rest + piece
        whole = len(piece) // 2 * 2
        rest = piece[whole:]
        yield np.frombuffer(piece[:whole], "<i2").astype(np.float32) / np.float32(32_768)


def listen(rate: int) -> Iterator[Samples]:
    """What a microphone hears, until Ctrl-C."""
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        advice = "pip install sounddevice, and the library PortAudio"
        raise ValueError(expected("--microphone", "sounddevice", error, advice)) from None
    size, stopped = round(PIECE_SECONDS * rate), threading.Event()
    # An exception could come in the middle of a step, and the last line would be lost.
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        with sounddevice.InputStream(samplerate=rate, channels=1, dtype="float32") as device:
            while not stopped.is_set():
                yield device.read(size)[0][:, 0]
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
