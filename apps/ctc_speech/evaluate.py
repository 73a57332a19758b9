"""Measure the phoneme error rate of a trained run.

    python apps/ctc_speech/evaluate.py --run RUN --data-dir DIR
    python apps/ctc_speech/evaluate.py --run RUN --data-dir DIR --decoder beam --ngram 5 --average 5
    python apps/ctc_speech/evaluate.py --run RUN --data-dir DIR --ngram 5 --write-lm phones.arpa

Choose decoder and weights on the dev set (--split dev), and look at the test set once. A run whose
frames are normalized by speaker has two error rates: with all utterances of a speaker, later ones
too, as in training, and with each utterance alone, as transcribe.py hears it.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from linattn_core.errors import expected
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models.training import write_json
from speech.corpora import BadInput, CorpusFlags
from speech.decoding import Decoding, build_search
from speech.error_rate import Errors, evaluate
from speech.features import Normalization
from speech.models import TrainedRun, load_run, rebuild_recipe, require_inventory
from speech.training import load_speech

EXPLAINED: dict[Normalization, str] = {
    "speaker": "all utterances of a speaker together",
    "utterance": "each utterance alone, as transcribe.py hears it",
    "running": "what was heard so far, as transcribe.py and stream.py hear it",
    "none": "none",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CorpusFlags):
    """Which run, on what, and how phones are decoded."""

    run: Path
    """Folder of the run that train.py made."""
    decoding: Annotated[Decoding, tyro.conf.arg(name="")]
    split: Literal["dev", "test"] = "test"
    """Which utterances."""
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    bad_input: BadInput = "refuse"
    """Whether utterances that cannot be used end this, or are left out and counted."""
    write_lm: Path | None = None
    """An ARPA file for the n-gram of --ngram, which transcribe.py --lm reads; none if not given."""
    out: Path | None = None
    """A JSON file for the numbers; none if not given."""


def main(flags: Flags) -> None:
    """Prints the errors, and writes them where they are asked for."""
    check(flags)
    for flag, file in (("--out", flags.out), ("--write-lm", flags.write_lm)):
        if file is not None:
            make_folders(file.parent)
            if file.is_dir():
                raise ValueError(expected(flag, "a file", f"the folder {file}"))
    run = load_run(flags.run, flags.average)
    by_normalization = measure_errors(run, flags)
    print(f"{run.label}, {flags.split}")
    for kind, errors in by_normalization.items():
        print(f"  normalization: {EXPLAINED[kind]}")
        for line in errors.lines():
            print(f"    {line}")
    if flags.out is not None:
        errors = by_normalization[run.features.normalize]
        content = {**errors.metrics(), "phones": errors.phones, "confused": errors.confused}
        if "utterance" in by_normalization:
            content["transcribed"] = by_normalization["utterance"].metrics()
        write_json(flags.out, content)


def check(flags: Flags) -> None:
    """Refuses numbers out of range, and a language model that nothing would use."""
    decoding = flags.decoding
    require_at_least(flags, {"average": 1})
    require_at_least(decoding, {"ngram": 0})
    decoding.check()
    if flags.write_lm is not None and (decoding.lm is not None or not decoding.ngram):
        got = "none" if decoding.lm is None else "--lm"
        raise ValueError(expected("--write-lm", "an n-gram to estimate, by --ngram", got))
    if decoding.lm is not None and decoding.ngram:
        raise ValueError(expected("--lm", "no --ngram beside it", f"--ngram {decoding.ngram}"))
    estimated = decoding.ngram and flags.write_lm is None
    if decoding.decoder == "greedy" and (estimated or decoding.lm is not None):
        flag = "--lm" if decoding.lm is not None else "--ngram"
        raise ValueError(expected(flag, "--decoder beam with it", "--decoder greedy"))


def measure_errors(run: TrainedRun, flags: Flags) -> dict[Normalization, Errors]:
    """The errors of a run on a split of its corpus, as trained and as transcribe.py hears it."""
    recipe = rebuild_recipe(run, flags.bad_input)
    corpus = flags.read(recipe.corpus, flags.bad_input, recipe.utterances)
    require_inventory(run, corpus)
    search = build_search(flags.decoding, corpus.transcripts("train"), run.inventory)
    if flags.write_lm is not None and search.lm is not None:
        search.lm.write(flags.write_lm)
    kinds = dict.fromkeys((recipe.normalize, run.features.alone))
    errors: dict[Normalization, Errors] = {}
    for kind in kinds:
        own = dataclasses.replace(recipe, normalize=kind)
        speech = load_speech(corpus, flags.split, own, flags.cache, run.prior)
        (errors[kind],) = evaluate(run.model, speech, run.inventory, [search.phones])
    return errors


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
