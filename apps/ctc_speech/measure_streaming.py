"""Measure a recognizer that streams: errors by chunk, delays, revisions, computing time, levels.

    python apps/ctc_speech/measure_streaming.py --run RUN --data-dir DIR --average 5
    python apps/ctc_speech/measure_streaming.py --run OTHER --data-dir DIR --name softmax --out SAME

Errors are those of whole utterances in chunks, which a stream gives, too; greedy, and with an
n-gram of the training transcripts. Delays, revisions and computing time are those of streams whose
samples arrive in pieces of 10 ms, with the n-gram; torch's threads are one unless --threads says
otherwise. Levels and the long stream are decoded greedily at the chunk of the run. Needs onnxscript
and onnxruntime. Runs that were measured with the same --out are columns of one table.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro

from linattn_core.errors import expected
from linattn_lab.machine import describe_machine
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_lab.store import Record, add_record, new_record, read_records
from linattn_models.ctc import ctc_greedy
from linattn_models.files import replace_file
from speech.audio import Samples, read_audio
from speech.augment import change_level
from speech.batches import Speech
from speech.corpora import BadInput, CorpusFlags
from speech.decoding import BeamFlags, Decoding, Search, build_search
from speech.error_rate import evaluate
from speech.features import STEP_MS
from speech.live import LiveMeasures, measure_growth, measure_live, measure_steps
from speech.models import APP, TrainedRun, load_run, rebuild_recipe, require_inventory
from speech.online import EndpointRules, OnlineRecognizer, require_streaming
from speech.running import Prior
from speech.streaming_table import WHOLE, Streaming, write_document
from speech.training import load_speech

NEVER = EndpointRules(silence=np.inf, pause=np.inf, longest=np.inf)
FRAMES_PER_MINUTE = 6_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CorpusFlags):
    """Which run, on what."""

    run: Path
    """Folder of the run that train.py made."""
    search: Annotated[BeamFlags, tyro.conf.arg(name="")]
    ngram: int = 5
    """Phones of the longest n-gram; --lm takes its place."""
    split: Literal["dev", "test"] = "dev"
    """Which utterances."""
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    chunks: tuple[int, ...] = (4, 8, 16)
    """Frames of 40 ms that are heard before an answer."""
    gains: tuple[float, ...] = (-20.0, -10.0, 0.0, 10.0)
    """Decibels by which the utterances are louder."""
    minutes: float = 18.0
    """Of the stream without a reset: the utterances one after another."""
    growth_minutes: float = 60.0
    """Of the stream whose memory is measured."""
    streams: int = 64
    """Streams side by side, beside single ones."""
    recordings: int = 64
    """How many utterances are streamed."""
    threads: int = 1
    """Threads of the CPU."""
    bad_input: BadInput = "refuse"
    """Whether utterances that cannot be used end this, or are left out and counted."""
    name: str | None = None
    """Title of the column; attention and seed of the run if not given."""
    out: Path = Path("runs", APP, "streaming")
    """Folder for streaming.md, its plot and streaming.json, such as docs/results/speech."""


def main(flags: Flags) -> None:
    """Measures, adds the results to those of other runs, and prints the table of all."""
    least = {"average": 1, "chunks": 1, "ngram": 0, "streams": 1, "recordings": 1, "threads": 1}
    require_at_least(flags, least)
    flags.search.check()
    for package in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            advice = f"pip install {package}"
            raise ValueError(expected("the measurement", f"the package {package}", "none", advice))
    make_folders(flags.out)
    torch.set_num_threads(flags.threads)
    run = load_run(flags.run, flags.average)
    name = flags.name or f"{run.config['attention']}, seed {run.config['training']['seed']}"
    machine = describe_machine(threads=flags.threads)
    command = shlex.join(["python", *sys.argv])
    file = flags.out / "streaming.json"
    add_record(file, new_record(command, machine, {name: measure(run, flags)}))
    text = write_document(read_records(file, Record[Streaming]), flags.out)
    replace_file(flags.out / "streaming.md", text.encode())
    print(text)


def measure(run: TrainedRun, flags: Flags) -> Streaming:
    """Everything."""
    _, prior = require_streaming(run)
    recipe = rebuild_recipe(run, flags.bad_input)
    corpus = flags.read(recipe.corpus, flags.bad_input, recipe.utterances)
    require_inventory(run, corpus)
    decoding = Decoding(decoder="beam", ngram=flags.ngram, **vars(flags.search))
    search = build_search(decoding, corpus.transcripts("train"), run.inventory)
    speech = load_speech(corpus, flags.split, recipe, flags.cache, prior)
    recordings = [
        read_audio(item.source, start=item.start, end=item.end, channels=run.features.channels)
        for item in corpus.splits[flags.split][: flags.recordings]
    ]
    chunk = int(run.config["chunk"])
    chunks = {str(size): size for size in flags.chunks} | {WHOLE: max(speech.lengths())}
    levels = {f"{gain:+g} dB": at_level(speech, gain, prior) for gain in flags.gains}
    long = repeat_speech(speech, flags.minutes, prior)
    growing = OnlineRecognizer(run, search, chunk)
    growth, search_bytes = measure_growth(growing, recordings, flags.growth_minutes)
    return Streaming(
        split=flags.split,
        search=decoding.label,
        updates=run.step,
        frame_ms=run.model.config.subsampling * STEP_MS,
        chunk=chunk,
        errors={name: measure_errors(run, speech, search, n) for name, n in chunks.items()},
        live=measure_streams(run, recordings, search, flags),
        levels={name: measure_greedy(run, changed, chunk) for name, changed in levels.items()},
        minutes=flags.minutes,
        long=measure_greedy(run, long, chunk),
        step_seconds=measure_steps(run, chunk),
        growth_minutes=flags.growth_minutes,
        growth=growth,
        search_bytes=search_bytes,
    )


def measure_errors(
    run: TrainedRun, speech: Speech, search: Search, chunk: int
) -> tuple[float, float]:
    """The error rates in chunks of this size: greedy, and by the search."""
    decoders = [ctc_greedy, search.phones]
    greedy, best = evaluate(run.model, speech, run.inventory, decoders, chunk=chunk)
    return greedy.rate, best.rate


def measure_greedy(run: TrainedRun, speech: Speech, chunk: int) -> float:
    """The greedy error rate."""
    return evaluate(run.model, speech, run.inventory, [ctc_greedy], chunk=chunk)[0].rate


def at_level(speech: Speech, gain: float, prior: Prior) -> Speech:
    """The same utterances, louder by `gain` decibels."""
    frames = [torch.from_numpy(speeds[0]).float() for speeds in speech.frames]
    changed = [[change_level(each, gain).numpy()] for each in frames]
    return Speech(changed, speech.classes, prior=prior)


def repeat_speech(speech: Speech, minutes: float, prior: Prior) -> Speech:
    """All utterances as one, again and again until it has the minutes."""
    whole = np.concatenate([speeds[0] for speeds in speech.frames])
    times = max(1, round(minutes * FRAMES_PER_MINUTE / len(whole)))
    phones = [phone for classes in speech.classes for phone in classes]
    return Speech([[np.concatenate([whole] * times)]], [phones * times], prior=prior)


def measure_streams(
    run: TrainedRun, recordings: Sequence[Samples], search: Search, flags: Flags
) -> dict[str, dict[str, LiveMeasures]]:
    """Delays, revisions and computing time, by chunk, then by streams side by side."""
    recognizers = {str(n): OnlineRecognizer(run, search, n, NEVER) for n in flags.chunks}
    numbers = dict.fromkeys((1, flags.streams))
    return {
        chunk: {str(n): measure_live(recognizer, recordings, n) for n in numbers}
        for chunk, recognizer in recognizers.items()
    }


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
