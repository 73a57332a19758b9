"""What each model learns within an equal time: the paper's table 3 and figure 5.

    python apps/ctc_speech/compare.py --preset smoke                    seconds, synthetic speech
    python apps/ctc_speech/compare.py --corpus an4 --data-dir DIR       40 minutes per model
    python apps/ctc_speech/compare.py --corpus an4 --data-dir DIR --convolution --average 5
    python apps/ctc_speech/compare.py --corpus an4 --data-dir DIR --finished --no-test

First a few updates of each model are timed, in turn. Then each is trained for as many updates as
fit into --minutes, from the same seed, on the same utterances in the same order.

Each run is decoded greedily and by beam search with an n-gram of the training transcripts. Its
order, weight and bonus are those with the fewest errors on the dev set, of a small grid with greedy
decoding in it. Then the test set is recognized, once: recognition.json in the run's folder has the
errors, and the same command reads them there.

Into --out go results.md, curves.png, results.json, timings.json, and a folder for each run. Given
again after an interruption, the same command continues, with the times it measured. Runs that
train.py made in these folders, with as many updates, are taken as they are.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from linattn_core.errors import expected
from linattn_lab.runs import make_folders, publish, run_summary
from linattn_lab.script import parse_flags, require_at_least, require_one_process, run_script
from linattn_models.files import replace_file
from linattn_models.training import write_json
from speech.comparison import (
    build_comparison,
    comparison_document,
    comparison_table,
    draw_curves,
    list_recipes,
    model_name,
    read_update_times,
)
from speech.corpora import BadInput, CorpusFlags, CorpusName
from speech.models import APP
from speech.presets import ATTENTIONS, PRESETS, Attention, PresetName
from speech.selection import Selection

MINUTES: dict[PresetName, float] = {"smoke": 0.02, "laptop": 40.0, "paper": 1_440.0}
YEAR = 525_600  # minutes
FILES = ("results.md", "curves.png", "results.json", "timings.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CorpusFlags):
    """Train every model within the same time, and compare."""

    preset: PresetName = "laptop"
    """smoke: seconds; laptop: for AN4 on one core; paper: the paper's own numbers."""
    corpus: CorpusName = "synthetic"
    """synthetic is made on this machine; the others are read from --data-dir."""
    bad_input: BadInput = "refuse"
    """Whether utterances that cannot be used end this, or are left out and counted."""
    utterances: int | None = None
    """Training utterances of the synthetic corpus; the preset's number if not given."""
    attentions: tuple[Attention, ...] = ATTENTIONS
    """What is compared; lstm is the Bi-LSTM."""
    convolution: bool = False
    """Train each transformer once more, with a convolution before each block."""
    seeds: tuple[int, ...] = (0,)
    """Each model is trained once with each seed."""
    minutes: float | None = None
    """Minutes of updates for each model; if not given 40, for smoke 0.02, for paper 1,440."""
    rounds: int = 7
    """Turns that each model has while updates are timed."""
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""
    test: bool = True
    """Recognize the test set; --no-test as long as anything is still decided on the dev set."""
    finished: bool = False
    """Train nothing: compare the runs that have ended; others that were begun are named."""
    out: Path | None = None
    """Folder for all of it; runs/ctc_speech/compare-CORPUS-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/speech."""

    def folder(self) -> Path:
        """Where everything goes."""
        default = Path("runs", APP, f"compare-{self.corpus}-{self.preset}")
        return self.out if self.out is not None else default


def main(flags: Flags) -> None:
    """Trains what is not trained yet, prints the table, and writes it."""
    require_one_process()
    check(flags)
    out, preset = flags.folder(), flags.preset
    make_folders(out, flags.publish)
    settings: dict[str, Any] = {"corpus": flags.corpus, "bad_input": flags.bad_input}
    settings["utterances"] = flags.utterances or PRESETS[preset]("linear").utterances
    corpus = flags.read(flags.corpus, flags.bad_input, settings["utterances"])
    recipes = list_recipes(preset, flags.attentions, **settings)
    # Those with a convolution are timed in any case: they may be asked for later.
    times = read_update_times(out / "timings.json", corpus, recipes, flags.cache, flags.rounds)
    minutes = MINUTES[preset] if flags.minutes is None else flags.minutes
    chosen = {x: y for x, y in recipes.items() if flags.convolution or not y.depthwise_kernel}
    comparison = build_comparison(corpus, chosen, flags.seeds, out, flags.cache)
    pace = {each.name: times.seconds[model_name(each.name)] for each in comparison.variants}
    comparison = comparison.within(60 * minutes, pace)
    if not flags.finished:
        comparison.equal_updates()
    runs, absent = comparison.find_complete()
    if not runs:
        raise ValueError(expected(str(out), "a run that has ended", "none", "train first"))
    selection = Selection(corpus, flags.cache, flags.bad_input, flags.average)
    summaries = {}
    for name, run in runs.items():
        print(f"{name}:", flush=True)
        recognition = selection.recognize(run, flags.test).model_dump(exclude_none=True)
        summaries[name] = {**run_summary(run, APP), "recognition": recognition}
    results = {
        "app": APP,
        "corpus": corpus.name,
        "preset": preset,
        "minutes": minutes,
        "average": flags.average,
        "timing": times.model_dump(),
        "runs": summaries,
        "absent": absent,
    }
    draw_curves(out / "curves.png", runs, times)
    write_json(out / "results.json", results)
    text = comparison_document(results, shlex.join(["python", *sys.argv]))
    replace_file(out / "results.md", text.encode())
    if flags.publish is not None:
        publish(out, flags.publish, FILES, runs.values())
    print(f"\n{comparison_table(results)}\nTable, picture and runs are in {out}.")


def check(flags: Flags) -> None:
    """Refuses numbers out of range and names that do not fit together."""
    require_at_least(flags, {"rounds": 1, "average": 1, "utterances": 1})
    for flag, values in (("--attentions", flags.attentions), ("--seeds", flags.seeds)):
        if not values or len(set(values)) < len(values):
            named = " ".join(map(str, values)) or "none"
            raise ValueError(expected(flag, "one or more, each once", named))
    require_at_least(flags, {"seeds": 0})
    keep = PRESETS[flags.preset]("linear").training.keep_checkpoints
    if flags.average > keep and not flags.finished:
        wanted = f"at most the {keep} checkpoints that preset {flags.preset} keeps"
        raise ValueError(expected("--average", wanted, flags.average))
    if flags.minutes is not None and not 0 < flags.minutes <= YEAR:
        raise ValueError(expected("--minutes", f"more than 0, at most {YEAR:,}", flags.minutes))


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
