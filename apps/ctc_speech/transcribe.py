"""Recognize the phones of recordings: WAV, FLAC, OGG, MP3 or NIST SPHERE, from 1 kHz on.

    python apps/ctc_speech/transcribe.py --run RUN FILE FILE
    python apps/ctc_speech/transcribe.py --run RUN --n-best 5 --json FILE
    python apps/ctc_speech/transcribe.py --run RUN --pictures DIR FILE
    python apps/ctc_speech/transcribe.py --run RUN --lm phones.arpa --bad-input skip FILE FILE

Each line begins with the logarithm of the probability of its phones. Below are the phones of the
best line, each with its start and end in seconds and the model's confidence. A file that cannot be
recognized ends this, or is named and left out with --bad-input skip; what was recognized before is
printed either way.
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
from typing import Annotated, Any

import tyro

from linattn_core.errors import expected
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from speech.corpora import BadInput
from speech.decoding import BeamFlags, Decoding, Search, build_search
from speech.models import TrainedRun, load_run
from speech.transcription import Transcript, escape_unprintable, transcribe, write_picture


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which recordings, by which run."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """The recordings."""
    run: Path
    """Folder of the run that train.py made."""
    search: Annotated[BeamFlags, tyro.conf.arg(name="")]
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    n_best: int = 1
    """How many different transcripts are printed, the best first."""
    bad_input: BadInput = "refuse"
    """Whether a file that cannot be recognized ends this, or is named, left out and counted."""
    json: bool = False
    """Print JSON, one list for all recordings."""
    pictures: Path | None = None
    """Folder for a picture of each: its filterbank with the probabilities of the phones above."""


def main(flags: Flags) -> None:
    """Prints the phones of every recording."""
    check(flags)
    make_folders(flags.pictures)
    run = load_run(flags.run, flags.average)
    decoding = Decoding(decoder="beam", **vars(flags.search))
    search = build_search(decoding, [], run.inventory)
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


def check(flags: Flags) -> None:
    """Refuses numbers out of range, and recordings whose pictures would overwrite each other."""
    require_at_least(flags, {"average": 1, "n_best": 1})
    flags.search.check()
    if not flags.files:
        raise ValueError(expected("FILE", "at least one recording", "none"))
    stem, count = Counter(path.stem for path in flags.files).most_common(1)[0]
    if flags.pictures is not None and count > 1:
        got = f"{count} files named {stem!r}"
        raise ValueError(expected("--pictures", "a name of its own for each file", got))


def transcribe_files(flags: Flags, run: TrainedRun, search: Search) -> Iterator[Transcript]:
    """The recordings as phones; those that cannot be recognized are refused or named and counted.

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
