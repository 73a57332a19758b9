"""Train a recognizer of speech: audio in; phones, characters or pieces of words out, by CTC.

    python apps/ctc_speech/train.py --preset smoke                     seconds, synthetic speech
    python apps/ctc_speech/train.py --corpus an4 --data-dir DIR        real speech, 40 minutes
    python apps/ctc_speech/train.py --corpus an4 --data-dir DIR --attention softmax
    python apps/ctc_speech/train.py --corpus an4 --data-dir DIR --preset streaming
    python apps/ctc_speech/train.py --corpus manifest --manifest train.jsonl    your own recordings

Every default is the preset's. A run is a folder: config.json, metrics.jsonl, summary.json,
checkpoints, and a picture, curve.png. A run that was stopped or killed continues with the same
command and --resume.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
from pathlib import Path
from typing import Any, get_args

from linattn_core.errors import expected
from linattn_lab.script import peek_flag, preset_flags, require_at_least, run_script
from linattn_lab.tables import training_cost
from linattn_models.training import is_main_process, main_process_first
from speech.corpora import CorpusFlags
from speech.models import APP
from speech.presets import PRESETS, Attention, PresetName, Recipe
from speech.training import train_model
from speech.units import name_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CorpusFlags, Recipe):
    """The settings of a run."""

    preset: PresetName
    """smoke: seconds; laptop: AN4, 40 minutes of one core; streaming: the same for
    speech as it arrives; paper: the paper's own numbers."""
    out: Path | None = None
    """Run folder; runs/ctc_speech/CORPUS-ATTENTION-PRESET if not given."""
    resume: bool = False
    """Continue the run in --out from its newest checkpoint."""

    def run_folder(self) -> Path:
        """Where the run goes."""
        default = Path("runs", APP, f"{self.corpus}-{self.attention}-{self.preset}")
        return self.out if self.out is not None else default


def main() -> None:
    """Trains, and recognizes the test set."""
    known: dict[str, Attention] = {name: name for name in get_args(Attention)}
    attention = known.get(peek_flag("attention", "linear"), "linear")  # tyro refuses others
    presets: dict[str, Flags] = {
        name: Flags(**vars(preset(attention))) for name, preset in PRESETS.items()
    }
    flags = preset_flags(presets, description=__doc__)
    require_at_least(flags, {"batch_frames": 1, "max_frames": 1, "utterances": 1, "chunk": 0})
    if flags.chunk and flags.attention.startswith("lsh"):
        wanted = "linear, softmax or lstm beside --chunk"
        raise ValueError(expected("--attention", wanted, flags.attention))
    if flags.train_chunks and (not flags.chunk or min(flags.train_chunks) < 1):
        wanted = "numbers of at least 1, beside --chunk"
        raise ValueError(expected("--train-chunks", wanted, flags.train_chunks))
    with main_process_first():  # makes the synthetic corpus
        corpus = flags.read(flags.corpus, flags.bad_input, flags.utterances, flags.units)
    out = flags.run_folder()
    summary = train_model(corpus, flags, out, flags.cache, resume=flags.resume)
    if is_main_process():
        report(summary, out)


def report(summary: dict[str, Any], out: Path) -> None:
    """The numbers, on the terminal."""
    metrics = summary["metrics"]
    print(f"{summary['attention']} on {summary['corpus']}, in {out}")
    for line in summary["errors"].lines():
        print(f"  {line}")
    dev = metrics[f"dev_{name_rate(summary['errors'].noun)}"]
    print(f"  {dev:.2%} wrong on the dev set")
    print(f"  {training_cost(summary)}, {metrics['seconds_per_epoch']:.1f} s per epoch")


if __name__ == "__main__":
    run_script(main)
