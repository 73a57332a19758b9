"""Measure a recognizer that streams: errors by chunk, delays, revisions, computing time, levels.

    python apps/ctc_speech/measure_streaming.py --run RUN --data-dir DIR --average 5

Errors are those of whole utterances in chunks, which a stream gives, too; greedy, and with an
n-gram of the training transcripts. Delays, revisions and computing time are those of streams whose
samples arrive in pieces of 10 ms, with the n-gram; torch's threads are one unless --threads says
otherwise. Levels and the long stream are decoded greedily at the chunk of the run.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup  # noqa: F401  (before torch)

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_lab.tables import figure, markdown_table, name_environments
from linattn_models.ctc import ctc_greedy
from linattn_models.files import replace_file
from linattn_models.training import environment, write_json
from speech.audio import read_audio
from speech.augment import change_level
from speech.batches import Speech
from speech.corpora import BadInput, Corpus, CorpusFlags
from speech.decoding import BeamFlags, Decoding, Search, build_search
from speech.error_rate import evaluate
from speech.live import measure_live
from speech.models import APP, TrainedRun, load_run, rebuild_recipe, require_inventory
from speech.online import EndpointRules, OnlineRecognizer, require_streaming
from speech.running import Prior
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
    streams: int = 64
    """Streams side by side, beside single ones."""
    recordings: int = 64
    """How many utterances are streamed."""
    threads: int = 1
    """Threads of the CPU."""
    bad_input: BadInput = "refuse"
    """Whether utterances that cannot be used end this, or are left out and counted."""
    out: Path = Path("runs", APP, "streaming")
    """Folder for streaming.md and streaming.json."""


def main(flags: Flags) -> None:
    """Measures, prints the tables, and writes them."""
    least = {"average": 1, "chunks": 1, "ngram": 0, "streams": 1, "recordings": 1, "threads": 1}
    require_at_least(flags, least)
    flags.search.check()
    make_folders(flags.out)
    torch.set_num_threads(flags.threads)
    run = load_run(flags.run, flags.average)
    model, prior = require_streaming(run)
    recipe = rebuild_recipe(run, flags.bad_input)
    corpus = flags.read(recipe.corpus, flags.bad_input, recipe.utterances)
    require_inventory(run, corpus)
    decoding = Decoding(decoder="beam", ngram=flags.ngram, **vars(flags.search))
    search = build_search(decoding, corpus.transcripts("train"), run.inventory)
    speech = load_speech(corpus, flags.split, recipe, flags.cache, prior)
    chunk = model.config.transformer.causal_block
    record = {
        "app": APP,
        "run": run.label,
        "split": flags.split,
        "search": decoding.label,
        "chunk": chunk,
        "environment": environment(next(model.parameters()).device),
        "errors": {n: measure_errors(run, speech, search, n) for n in flags.chunks},
        "live": measure_streams(run, corpus, search, flags),
        "levels": {
            f"{gain:+g} dB": measure_greedy(run, at_level(speech, gain, prior), chunk)
            for gain in flags.gains
        },
        "long": measure_greedy(run, repeat_speech(speech, flags.minutes, prior), chunk),
        "minutes": flags.minutes,
    }
    write_json(flags.out / "streaming.json", record)
    text = write_document(record)
    replace_file(flags.out / "streaming.md", text.encode())
    print(text)


def measure_errors(run: TrainedRun, speech: Speech, search: Search, chunk: int) -> list[float]:
    """The error rates in chunks of this size: greedy, and by the search."""
    decoders = [ctc_greedy, search.phones]
    return [x.rate for x in evaluate(run.model, speech, run.inventory, decoders, chunk=chunk)]


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
    run: TrainedRun, corpus: Corpus, search: Search, flags: Flags
) -> dict[str, dict[str, Any]]:
    """Delays, revisions and computing time, by chunk and streams side by side."""
    channels = run.features.channels
    recordings = [
        read_audio(item.source, start=item.start, end=item.end, channels=channels)
        for item in corpus.splits[flags.split][: flags.recordings]
    ]
    measured = {}
    for chunk in flags.chunks:
        recognizer = OnlineRecognizer(run, search, chunk, NEVER)
        for streams in dict.fromkeys((1, flags.streams)):
            measures = measure_live(recognizer, recordings, streams)
            name = f"chunk {chunk}, streams {streams}"
            measured[name] = dataclasses.asdict(measures)
    return measured


def write_document(record: dict[str, Any]) -> str:
    """The tables."""
    errors = [
        [f"chunk {chunk}", *(f"{rate:.2%}" for rate in rates)]
        for chunk, rates in record["errors"].items()
    ]
    others = [[f"{level}, greedy", f"{rate:.2%}"] for level, rate in record["levels"].items()]
    others.append([f"{record['minutes']:g} minutes without reset", f"{record['long']:.2%}"])
    live = [
        [
            name,
            figure(x["real_time_factor"]),
            *(
                "-" if x[p] is None else f"{1_000 * x[p]:.0f} ms"
                for p in ("delay_p50", "delay_p95")
            ),
            f"{x['revised']:.1%}",
            f"{x['state_bytes']:,}",
        ]
        for name, x in record["live"].items()
    ]
    title = ["streams", "seconds a second", "delay p50", "p95", "revised", "bytes of a state"]
    parts = [
        f"# Streaming: {record['run']}, {record['split']}",
        markdown_table(["errors", "greedy", record["search"]], errors),
        markdown_table(title, live),
        markdown_table([f"errors at chunk {record['chunk']}", "greedy"], others),
        f"Measured at {name_environments([record['environment']])}.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
