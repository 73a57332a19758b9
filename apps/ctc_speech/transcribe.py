"""Recognize the phones of recordings: WAV, FLAC, OGG or NIST SPHERE, of any rate.

    python apps/ctc_speech/transcribe.py --run RUN FILE FILE
    python apps/ctc_speech/transcribe.py --run RUN --n-best 5 --json FILE
    python apps/ctc_speech/transcribe.py --run RUN --pictures DIR FILE

Each line begins with the logarithm of the probability of its phones. Below are the phones of the
best line, each with its start and end in seconds and the model's confidence.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.interruption  # noqa: F401  (before torch)

import dataclasses
import json
from pathlib import Path

import tyro

from linattn_core.errors import expected
from linattn_models.training import parse_flags, require_at_least, run_script
from speech.decoding import Decoding, search
from speech.models import load_run
from speech.pictures import write_picture
from speech.transcription import transcribe


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which recordings, by which run."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """The recordings."""
    run: Path
    """Folder of the run that train.py made."""
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    n_best: int = 1
    """How many different transcripts are printed, the best first."""
    beam: int = 16
    """Prefixes that the search keeps."""
    lm: Path | None = None
    """An ARPA file with a model of phones."""
    lm_weight: float = 0.5
    """Weight of the language model's log-probabilities."""
    json: bool = False
    """Print JSON, one list for all recordings."""
    pictures: Path | None = None
    """Folder for a picture of each: its filterbank with the probabilities of the phones above."""


def main(flags: Flags) -> None:
    """Prints the phones of every recording."""
    require_at_least(flags, {"average": 1, "n_best": 1, "beam": 1})
    if not flags.files:
        raise ValueError(expected("FILE", "at least one recording", "none"))
    run = load_run(flags.run, flags.average)
    decoding = Decoding("beam", flags.beam, lm=flags.lm, lm_weight=flags.lm_weight)
    found = search(decoding, [], run.inventory)
    transcripts = []
    for path in flags.files:
        transcript = transcribe(run, path, found, flags.n_best)
        transcripts.append(transcript.to_dict())
        if not flags.json:
            print("\n".join(transcript.lines()))
        if flags.pictures is not None:
            picture = flags.pictures / f"{path.stem}.png"
            write_picture(picture, transcript, f"{path.name}: {run.label}")
    if flags.json:
        print(json.dumps(transcripts, indent=2))


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
