"""Recognize what recordings say, or those of a split of the run's corpus, whose errors are counted.

    python apps/ctc_speech/transcribe.py --run RUN FILE FILE
    python apps/ctc_speech/transcribe.py --run RUN --n-best 5 --json FILE
    python apps/ctc_speech/transcribe.py --run RUN --pictures DIR FILE
    python apps/ctc_speech/transcribe.py --run RUN --lm phones.arpa --bad-input skip FILE FILE
    python apps/ctc_speech/transcribe.py --run RUN --split dev --data-dir DIR --ngram 5 --average 5

Recordings are WAV, FLAC, OGG, MP3 or NIST SPHERE, from 1 kHz on. Each line begins with the
logarithm of its probability. Below are the words of the best line, or its phones, each with start
and end in seconds and the model's confidence. A file that cannot be recognized ends this, or is
named and left out with --bad-input skip; what was recognized before is printed either way.

With --split the error rates are printed, of greedy decoding and of the search, and kept by name in
figures.json in the run's folder. Choose the search on the dev set, and look at the test set once. A
run whose frames are normalized by speaker has two rates of each: with all utterances of a speaker,
later ones too, as in training, and with each utterance alone, as a recording is heard.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from linattn_core.errors import expected
from linattn_lab.figures import add_figures
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models.ctc import NGram, ctc_greedy
from speech.corpora import BadInput, Corpus, CorpusFlags, Split
from speech.decoding import Decoding, Search
from speech.error_rate import evaluate
from speech.features import Normalization
from speech.models import TrainedRun, load_run, rebuild_recipe
from speech.training import load_speech
from speech.transcription import Transcript, escape_unprintable, transcribe, write_picture

EXPLAINED: dict[Normalization, str] = {
    "speaker": "all utterances of a speaker together",
    "utterance": "each utterance alone",
    "running": "what was heard so far",
    "none": "none",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CorpusFlags):
    """Which recordings or utterances, by which run."""

    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """The recordings."""
    run: Path
    """Folder of the run that train.py made."""
    search: Annotated[Decoding, tyro.conf.arg(name="")]
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    n_best: int = 1
    """How many different transcripts are printed, the best first."""
    bad_input: BadInput = "refuse"
    """Whether what cannot be recognized ends this, or is named, left out and counted."""
    json: bool = False
    """Print JSON, one list for all recordings."""
    pictures: Path | None = None
    """Folder for a picture of each: its filterbank with the probabilities of the phones above."""
    split: Literal["dev", "test"] | None = None
    """In place of recordings, utterances of the run's corpus."""
    chunk: int | None = None
    """With --split and a run that streams: output frames of a chunk, of any number."""
    ngram: int = 0
    """With --split: labels of the longest n-gram of the training transcripts, for the search."""
    write_lm: Path | None = None
    """An ARPA file for the n-gram of --ngram, which --lm reads; none if not given."""


def main(flags: Flags) -> None:
    """Prints what every recording says, or the errors of the utterances."""
    check(flags)
    make_folders(flags.pictures, flags.run if flags.split and flags.run.is_dir() else None)
    run = load_run(flags.run, flags.average)
    if flags.split is None:
        print_transcripts(flags, run)
    else:
        print_errors(flags, run, flags.split)


def check(flags: Flags) -> None:
    """Refuses numbers out of range, and flags that nothing would use or that exclude others."""
    require_at_least(flags, {"average": 1, "n_best": 1, "ngram": 0, "chunk": 1})
    flags.search.check()
    if bool(flags.files) == (flags.split is not None):
        got = "both" if flags.files else "neither"
        raise ValueError(expected("FILE", "recordings, or --split", got))
    if flags.ngram and (flags.split is None or flags.search.lm is not None):
        got = "neither" if flags.split is None else "--lm"
        raise ValueError(expected("--ngram", "--split beside it, and no --lm", got))
    if flags.write_lm is not None:
        if not flags.ngram:
            raise ValueError(expected("--write-lm", "an n-gram to estimate, by --ngram", "none"))
        make_folders(flags.write_lm.parent)
        if flags.write_lm.is_dir():
            raise ValueError(expected("--write-lm", "a file", f"the folder {flags.write_lm}"))
    stem, count = Counter(path.stem for path in flags.files or [Path()]).most_common(1)[0]
    if flags.pictures is not None and count > 1:
        got = f"{count} files named {stem!r}"
        raise ValueError(expected("--pictures", "a name of its own for each file", got))


def print_errors(flags: Flags, run: TrainedRun, split: Split) -> None:
    """The errors on a split, greedy and by the search, as trained and as a recording is heard."""
    recipe = rebuild_recipe(run, flags.bad_input)
    corpus = flags.read(recipe.corpus, flags.bad_input, recipe.utterances, units=run.units)
    search = build_search(flags, run, corpus)
    print(f"{run.label}, {split}")
    figures: dict[str, float] = {}
    chunk = [f"chunk {flags.chunk}"] * (flags.chunk is not None)
    for kind in dict.fromkeys((recipe.normalize, run.alone)):
        own = dataclasses.replace(recipe, normalize=kind)
        speech = load_speech(corpus, split, own, flags.cache, run.prior)
        decoders = {"greedy": ctc_greedy, search.label: search.labels}
        errors = evaluate(run.model, speech, run.units, list(decoders.values()), True, flags.chunk)
        for label, each in zip(decoders, errors, strict=True):
            lines = [f"normalization: {EXPLAINED[kind]}; {label}", *each.lines()]
            print("  " + "\n    ".join(lines))
            name = "/".join([split, kind, *chunk, f"average {flags.average}", label])
            figures |= {f"{name}/{x}": value for x, value in each.metrics().items()}
    add_figures(flags.run, figures)


def build_search(flags: Flags, run: TrainedRun, corpus: Corpus) -> Search:
    """The search with the n-gram that is asked for, which is written where it shall be."""
    if not flags.ngram:
        return Search.read(flags.search, run.units.inventory)
    lm = NGram.estimate(corpus.transcripts("train"), run.units.inventory, flags.ngram)
    if flags.write_lm is not None:
        lm.write(flags.write_lm)
    return Search(flags.search, lm)


def print_transcripts(flags: Flags, run: TrainedRun) -> None:
    """The labels of recordings, and their pictures."""
    search = Search.read(flags.search, run.units.inventory)
    recognized: list[dict[str, Any]] = []
    try:
        for transcript in transcribe_files(flags, run, search):
            recognized.append(transcript.to_dict())
            if not flags.json:
                print("\n".join(transcript.lines()))
            if flags.pictures is not None:
                path = transcript.path
                picture = flags.pictures / f"{path.stem}.png"
                write_picture(picture, transcript, f"{escape_unprintable(path.name)}: {run.label}")
    finally:  # what was recognized before an error is not lost
        if flags.json:
            print(json.dumps(recognized, indent=2))


def transcribe_files(flags: Flags, run: TrainedRun, search: Search) -> Iterator[Transcript]:
    """The recordings as labels; those that cannot be recognized are refused or named and counted.

    Raises:
        ValueError, OSError: one cannot be recognized, and is not to be skipped.
    """
    skipped = 0
    for path in flags.files:
        try:
            transcript = transcribe(run, path, search, flags.n_best)
        except (ValueError, OSError) as error:
            if flags.bad_input == "refuse":
                raise
            print(" ".join(str(error).split()), file=sys.stderr)
            skipped += 1
        else:
            yield transcript
    if skipped:
        print(f"{skipped} of {len(flags.files)} recordings left out", file=sys.stderr)


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
