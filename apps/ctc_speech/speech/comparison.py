"""The recognizers of the paper's table 3, trained for an equal time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from linattn_lab.compare import Comparison, Summary, UpdateTimes, Variant, curves, read_times
from linattn_lab.plots import Panel, plot_panels
from linattn_lab.updates import measure_memory, measure_updates
from linattn_models.training import RunFolder, TrainingFlags
from speech.batches import BatchCycle, pick_typical_batches
from speech.corpora import Corpus
from speech.models import build_model
from speech.presets import KERNEL, PRESETS, Attention, PresetName, Recipe
from speech.training import build_length_order, load_training_speech, recognizer_loss, train_model


def list_recipes(
    preset: PresetName, attentions: Sequence[Attention], **settings: Any
) -> dict[str, Recipe]:
    """The recipe of each model, by name; the transformers also with convolutions, as "X-conv".

    Args:
        settings: of every recipe, such as the corpus.
    """
    recipes = {name: replace(PRESETS[preset](name), **settings) for name in attentions}
    plain = {name: replace(recipe, depthwise_kernel=0) for name, recipe in recipes.items()}
    return plain | {
        f"{name}-conv": replace(recipe, depthwise_kernel=KERNEL)
        for name, recipe in recipes.items()
        if name != "lstm"
    }


def read_update_times(
    file: Path, corpus: Corpus, recipes: Mapping[str, Recipe], cache: Path, rounds: int
) -> UpdateTimes:
    """Seconds and bytes of an update by model, and batches per epoch, as in timings.json."""
    recipe = next(iter(recipes.values()))

    def measure() -> dict[str, object]:
        data = load_training_speech(corpus, recipe, cache)
        order, flags = build_length_order(data, recipe), recipe.training
        phones = len(corpus.inventory)
        models: dict[str, nn.Module] = {x: build_model(of, phones) for x, of in recipes.items()}
        longest = BatchCycle([order.epoch(0)[-1]])
        memory = measure_memory(models, data, recognizer_loss, flags, longest)
        typical = pick_typical_batches(order)
        times = measure_updates(models, data, recognizer_loss, flags, rounds, typical)
        return {"bytes": memory, "batches": len(order.epoch(0)), **times}

    about = {"corpus": corpus.name, "preset": recipe.preset}
    return read_times(file, about, list(recipes), measure)


def build_comparison(
    corpus: Corpus, recipes: Mapping[str, Recipe], seeds: Sequence[int], out: Path, cache: Path
) -> Comparison:
    """Each recipe with each seed: the folder of a seed other than 0 ends in -seedN."""
    variants = []
    for seed, (name, recipe) in itertools.product(seeds, recipes.items()):
        flags = replace(recipe.training, seed=seed)
        run = f"{name}-seed{seed}" if seed else name
        variants.append(_variant(run, replace(recipe, training=flags), corpus, cache))
    return Comparison(out, variants, has_ended)


def _variant(name: str, recipe: Recipe, corpus: Corpus, cache: Path) -> Variant:
    def train(flags: TrainingFlags, out: Path, resume: bool) -> object:
        return train_model(corpus, replace(recipe, training=flags), out, cache, resume=resume)

    settings: dict[str, object] = {
        "preset": recipe.preset,
        "corpus": corpus.name,
        "utterances": recipe.utterances,
        "inventory": list(corpus.inventory),
        "attention": recipe.attention,
        "corpus_digest": corpus.digest(),
        "bad_input": recipe.bad_input,
    }
    if recipe.attention != "lstm":
        settings["model.ctc_transformer.depthwise_kernel"] = recipe.depthwise_kernel
    return Variant(name, recipe.training, train, settings)


def model_name(run: str) -> str:
    """The model of a run, whatever its seed."""
    return run.partition("-seed")[0]


def has_ended(summary: Summary) -> bool:
    """Whether the test set was recognized; a run killed before that has a summary, too."""
    return "dev_phoneme_error_rate" in summary["metrics"]


def draw_curves(path: Path, runs: Mapping[str, RunFolder], times: UpdateTimes) -> None:
    """The paper's figure 5: the error rate over updates, and over time at the measured pace."""
    pace = {name: times.seconds[model_name(name)] / 60 for name in runs}
    panels = [
        Panel("updates", curves(runs, "phoneme_error_rate")),
        Panel("minutes of updates", curves(runs, "phoneme_error_rate", pace=pace)),
    ]
    plot_panels(path, panels, ylabel="phoneme error rate, dev set", log_scale=True)
