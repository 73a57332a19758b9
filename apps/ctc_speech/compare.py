"""What each model learns within an equal time: the paper's table 3 and figure 5.

    python apps/ctc_speech/compare.py --preset smoke                    seconds, synthetic speech
    python apps/ctc_speech/compare.py --corpus an4 --data-dir DIR       40 minutes per model
    python apps/ctc_speech/compare.py --corpus an4 --data-dir DIR --convolution --seeds 2

First a few updates of each model are timed, in turn. Then each is trained for as many updates as
fit into --minutes, on the same utterances in the same order. Into --out go table.md, curves.png,
figures.json, timings.json and a folder for each run, which transcribe.py reads. Given again after
an interruption, the same command continues.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from linattn_core.errors import expected
from linattn_lab.compare import TIMES, Budget, Curve, Display, compare
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, require_one_process, run_script
from linattn_lab.seeds import read_figures, repeat, with_noise
from linattn_lab.tables import figure
from linattn_lab.trainings import Trainings, Variant
from linattn_lab.updates import measure_updates, read_times
from linattn_models.training import TrainingFlags
from speech.batches import pick_typical_batches
from speech.corpora import BadInput, Corpus, CorpusFlags, CorpusName
from speech.models import APP, build_model
from speech.presets import ATTENTIONS, KERNEL, PRESETS, Attention, PresetName, Recipe
from speech.training import build_length_order, load_speech, recognizer_loss, train_model
from speech.units import name_rate

MINUTES: dict[PresetName, float] = {"smoke": 0.02, "paper": 1_440.0}
YEAR = 525_600  # minutes
COLUMNS: dict[str, Callable[[Any], str]] = {  # after those of errors
    "updates": lambda run: f"{run['steps']:,}",
    "s per update": lambda run: figure(run["seconds_per_update"]),
    "parameters": lambda run: f"{run['parameters']:,}",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CorpusFlags):
    """Train every model within the same time, and compare."""

    preset: PresetName = "laptop"
    """smoke: seconds; laptop: for AN4 on one core; streaming: the same for speech as it arrives;
    paper: the paper's own numbers."""
    corpus: CorpusName = "synthetic"
    """synthetic is made on this machine, manifest read from --manifest, others from --data-dir."""
    units: str | None = None
    """What is recognized: phones, characters, or bpe:N; as train.py chooses it if not given."""
    bad_input: BadInput = "refuse"
    """Whether utterances that cannot be used end this, or are left out and counted."""
    utterances: int | None = None
    """Training utterances of the synthetic corpus; the preset's number if not given."""
    attentions: tuple[Attention, ...] = ATTENTIONS
    """What is compared; lstm is the Bi-LSTM."""
    convolution: bool = False
    """Train each transformer once more, with a convolution before each block."""
    seeds: int = 1
    """Trainings of each model, with the seeds 0, 1, ..."""
    minutes: float | None = None
    """Minutes of updates for each model; if not given 40, for smoke 0.02, for paper 1,440."""
    rounds: int = 7
    """Turns that each model has while updates are timed."""
    finished: bool = False
    """Train nothing: compare the runs that have ended; others that were begun are named."""
    out: Path | None = None
    """Folder for all of it; runs/ctc_speech/compare-CORPUS-PRESET if not given."""
    publish: Path | None = None
    """Folder that gets a copy without the weights, such as docs/results/speech."""


def main(flags: Flags) -> None:
    """Trains what is not trained yet, prints the table, and writes it."""
    require_one_process()
    require_at_least(flags, {"rounds": 1, "utterances": 1, "seeds": 1})
    if not flags.attentions:
        raise ValueError(expected("--attentions", "one or more", "none"))
    minutes = MINUTES.get(flags.preset, 40.0) if flags.minutes is None else flags.minutes
    if not 0 < minutes <= YEAR:
        raise ValueError(expected("--minutes", f"more than 0, at most {YEAR:,}", minutes))
    out = flags.out or Path("runs", APP, f"compare-{flags.corpus}-{flags.preset}")
    make_folders(out, flags.publish)
    recipes = list_recipes(flags)
    one = next(iter(recipes.values()))
    corpus = flags.read(flags.corpus, flags.bad_input, one.utterances, flags.units)

    def measure() -> Mapping[str, object]:
        data = load_speech(corpus, "train", one, flags.cache)
        models = {
            name: build_model(of, len(corpus.units.inventory)) for name, of in recipes.items()
        }
        order = build_length_order(data, one)
        few = pick_typical_batches(order)
        times = measure_updates(models, data, recognizer_loss, one.training, flags.rounds, few)
        return {**times, "batches": len(order.epoch(0))}

    about = {"corpus": corpus.name, "preset": flags.preset}
    times = read_times(out / TIMES, about, list(recipes), measure)
    # Those with a convolution are timed in any case: they may be asked for later.
    chosen = [x for x, y in recipes.items() if flags.convolution or not y.depthwise_kernel]
    variants = [make_variant(name, recipes[name], corpus, flags) for name in chosen]
    rate, train = name_rate(corpus.units.noun), not flags.finished
    # A run that was killed before the test set was recognized has a summary, too.
    trainings = Trainings(
        out, repeat(variants, flags.seeds), lambda of: f"dev_{rate}" in of["metrics"]
    )
    budget, batches = Budget(times, 60 * minutes), (times.model_extra or {}).get("batches")
    display = build_display(rate, corpus.units.spell, batches)
    print(compare(trainings, display, budget=budget, publish_to=flags.publish, train=train))


def list_recipes(flags: Flags) -> dict[str, Recipe]:
    """The recipe of each model, by name; the transformers also with convolutions, as "X-conv"."""
    recipes = {}
    for kernel, name in itertools.product((0, KERNEL), flags.attentions):
        recipe = PRESETS[flags.preset](name)
        if not kernel or name != "lstm":
            recipes[f"{name}-conv" if kernel else name] = dataclasses.replace(
                recipe,
                depthwise_kernel=kernel,
                corpus=flags.corpus,
                units=flags.units,
                bad_input=flags.bad_input,
                utterances=flags.utterances or recipe.utterances,
            )
    return recipes


def make_variant(name: str, recipe: Recipe, corpus: Corpus, flags: Flags) -> Variant:
    """The training of a model."""

    def train(training: TrainingFlags, out: Path, resume: bool) -> object:
        own = dataclasses.replace(recipe, training=training)
        return train_model(corpus, own, out, flags.cache, resume=resume)

    settings: dict[str, object] = {
        **{x: getattr(recipe, x) for x in ("preset", "utterances", "attention", "bad_input")},
        "corpus": corpus.name,
        "inventory": list(corpus.units.inventory),
        "corpus_digest": corpus.digest(),
    }
    if recipe.attention != "lstm":
        settings["model.ctc_transformer.depthwise_kernel"] = recipe.depthwise_kernel
    return Variant(name, recipe.training, train, settings)


def build_display(rate: str, words: bool, batches: int | None) -> Display:
    """What is shown of the runs: error rates of their labels by the name `rate`, and of words.

    Args:
        batches: of an epoch, where timings.json says them.
    """

    def percent(name: str) -> Callable[[Any], str]:
        return lambda run: with_noise(run, name, lambda rate: f"{rate:.2%}")

    kinds = {"subst.": "substitutions", "ins.": "insertions", "del.": "deletions"}
    rates = {"test": rate, **kinds, "dev": f"dev_{rate}"}
    columns = {title: percent(name) for title, name in rates.items()} | COLUMNS
    if batches:
        columns["s per epoch"] = lambda run: figure(batches * run["seconds_per_update"])
    if words:
        columns["words, test"] = percent(name_rate("word"))
    curves = (Curve("updates", rate), Curve("minutes of updates", rate, over="pace", scale=1 / 60))
    return Display(
        columns,
        curves,
        figures=lambda rows: read_figures(rows, rate, "per", scale=100),
        ylabel=f"{rate.replace('_', ' ')}, dev set",
        log_scale=True,
        first="model",
        judged={"per": "Errors on the test set"},
    )


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
