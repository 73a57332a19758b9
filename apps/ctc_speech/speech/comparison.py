"""The recognizers of the paper's table 3, trained for an equal time: which, how, and the tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from linattn_lab.plots import Panel, plot_panels
from linattn_lab.tables import describe_environment, figure, name_environments, table_of
from linattn_lab.trainings import Trainings, Variant, curves
from linattn_lab.updates import UpdateTimes, measure_memory, measure_updates, read_times
from linattn_models.training import RunFolder, TrainingFlags
from speech.batches import BatchCycle, pick_typical_batches
from speech.corpora import Corpus
from speech.error_rate import KINDS
from speech.models import build_model
from speech.presets import KERNEL, PAPER, PRESETS, Attention, PresetName, Recipe
from speech.training import build_length_order, load_speech, recognizer_loss, train_model

Results = Mapping[str, Any]
"""The content of results.json."""
Columns = dict[str, Callable[[Any], str]]

PAPER_COLUMNS: Columns = {
    "validation": lambda row: f"{row[0]}%",
    "s per epoch (GPU)": lambda row: f"{row[1]:,}",
}


def list_recipes(
    preset: PresetName, attentions: Sequence[Attention], **settings: Any
) -> dict[str, Recipe]:
    """The recipe of each model, by name; the transformers also with convolutions, as "X-conv".

    Args:
        settings: of every recipe, such as the corpus.
    """
    plain = {x: replace(PRESETS[preset](x), depthwise_kernel=0, **settings) for x in attentions}
    return plain | {
        f"{name}-conv": replace(recipe, depthwise_kernel=KERNEL)
        for name, recipe in plain.items()
        if name != "lstm"
    }


def model_name(run: str) -> str:
    """The model of a run, whatever its seed."""
    return run.partition("-seed")[0]


def read_update_times(
    file: Path, corpus: Corpus, recipes: Mapping[str, Recipe], cache: Path, rounds: int
) -> UpdateTimes:
    """Seconds and bytes of an update by model, and batches per epoch, as in timings.json."""
    recipe = next(iter(recipes.values()))

    def measure() -> dict[str, object]:
        data = load_speech(corpus, "train", recipe, cache)
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
) -> Trainings:
    """Each recipe with each seed: the folder of a seed other than 0 ends in -seedN."""
    variants = []
    for seed, (name, recipe) in itertools.product(seeds, recipes.items()):
        flags = replace(recipe.training, seed=seed)
        run = f"{name}-seed{seed}" if seed else name
        variants.append(_variant(run, replace(recipe, training=flags), corpus, cache))
    # A run that was killed before the test set was recognized has a summary, too.
    return Trainings(out, variants, lambda of: "dev_phoneme_error_rate" in of["metrics"])


def _variant(name: str, recipe: Recipe, corpus: Corpus, cache: Path) -> Variant:
    def train(flags: TrainingFlags, out: Path, resume: bool) -> object:
        return train_model(corpus, replace(recipe, training=flags), out, cache, resume=resume)

    settings: dict[str, object] = {
        **{x: getattr(recipe, x) for x in ("preset", "utterances", "attention", "bad_input")},
        "corpus": corpus.name,
        "inventory": list(corpus.inventory),
        "corpus_digest": corpus.digest(),
    }
    if recipe.attention != "lstm":
        settings["model.ctc_transformer.depthwise_kernel"] = recipe.depthwise_kernel
    return Variant(name, recipe.training, train, settings)


def draw_curves(path: Path, runs: Mapping[str, RunFolder], times: UpdateTimes) -> None:
    """The paper's figure 5: the error rate over updates, and over time at the measured pace."""
    pace = {name: times.seconds[model_name(name)] / 60 for name in runs}
    panels = [
        Panel("updates", curves(runs, "phoneme_error_rate")),
        Panel("minutes of updates", curves(runs, "phoneme_error_rate", pace=pace)),
    ]
    plot_panels(path, panels, ylabel="phoneme error rate, dev set", log_scale=True)


def comparison_table(results: Results) -> str:
    """Errors and costs, a row for each run that has ended."""
    runs = {name: {"name": name, **run} for name, run in results["runs"].items()}
    both = _error_columns(results), _cost_columns(results["timing"])
    return "\n".join(table_of(runs, columns, first="model") for columns in both)


def _error_columns(results: Results) -> Columns:
    def rate(split: str, decoding: str, kind: str = "phoneme_error_rate") -> Callable[[Any], str]:
        return lambda run: f"{run['recognition'][split][decoding][kind]:.2%}"

    split = _last_split(results)
    columns: Columns = {}
    for each in dict.fromkeys((split, "dev")):
        columns[f"{each}, greedy"] = rate(each, "greedy")
        columns[f"{each}, selected"] = rate(each, "selected")
        if each == "test" and results["average"] > 1:
            columns["test, last weights"] = lambda x: f"{x['metrics']['phoneme_error_rate']:.2%}"
    for title, kind in zip(("subst.", "ins.", "del."), KINDS, strict=True):
        columns[title] = rate(split, "selected", kind)
    return {**columns, "selected": lambda run: str(run["recognition"]["selected"])}


def _cost_columns(timing: Mapping[str, Any]) -> Columns:
    def seconds(run: Mapping[str, Any]) -> float:
        return float(timing["seconds"][model_name(run["name"])])

    def memory(run: Mapping[str, Any]) -> str:
        size = timing["bytes"].get(model_name(run["name"]))
        return "-" if size is None else f"{size / 1e6:,.0f} MB"

    return {
        "updates": lambda run: f"{run['steps']:,}",
        "s per update": lambda run: figure(seconds(run)),
        "s per epoch": lambda run: figure(seconds(run) * timing["batches"]),
        "parameters": lambda run: f"{run['parameters']:,}",
        "memory": memory,
    }


def comparison_document(results: Results, command: str) -> str:
    """The tables, what their columns mean, the curves, and the paper's numbers."""
    absent = [f"{name} ({how_far})" for name, how_far in results["absent"].items()]
    runs = results["runs"].values()
    recognitions = [run["recognition"] for run in runs]
    dates = ", ".join(dict.fromkeys(each["date"] for each in recognitions))
    trained = name_environments(run["environment"] for run in runs)
    decoded = name_environments(each["environment"] for each in recognitions)
    parts = [
        f"# Phonemes from audio: {results['corpus']}",
        comparison_table(results).rstrip(),
        f"Not in the tables: {'; '.join(absent)}." if absent else "",
        _notes(results, recognitions[0]),
        "![The error rate of the dev set over updates and over time](curves.png)",
        "The paper's table 3, larger data and models trained to the end:",
        table_of(PAPER, PAPER_COLUMNS, first="paper, WSJ").rstrip(),
        f"Trained at {trained}. Decoded on {dates} at {decoded}.",
        f"Made by this command:\n\n    {command}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _notes(results: Results, recognition: Mapping[str, Any]) -> str:
    split, average, timing = _last_split(results), results["average"], results["timing"]
    both = split == "test" and average > 1  # the mean of the weights, and the last ones
    weights = (
        f"the mean of the last {average} checkpoints' weights"
        if average > 1
        else "those of the last update"
    )
    grid = {name: ", ".join(map("{:g}".format, x)) for name, x in recognition["grid"].items()}
    sizes = [f"{x} has {recognition[x]['phones']:,} phones" for x in dict.fromkeys(("dev", split))]
    lines = [
        f"Preset {results['preset']}; weights: {weights}; {', '.join(sizes)}.",
        "`-conv`: with a convolution before each block; `-seedN`: another seed than 0.",
        "selected: the decoding in the last column, with the fewest errors on the dev set. Tried "
        f"for each model: greedy, and a beam of {recognition['beam']} without an n-gram and with "
        f"those of order {grid['order']}, weight {grid['weight']}, bonus {grid['bonus']}.",
        f'subst., ins., del.: the parts of "{split}, selected".',
        "last weights: greedy, those of the last update, as in the curves." if both else "",
        f"Each model has {results['minutes']:g} minutes of updates, by the seconds per update that "
        f"were measured first, in turns ({timing['rounds']} rounds); "
        f"{describe_environment(timing['environment'])}. {timing.get('note', '')}".rstrip(),
        "memory: by how much it rises during an update of the longest batch.",
    ]
    return "\n".join(f"- {line}" for line in lines if line)


def _last_split(results: Results) -> str:
    recognition = next(iter(results["runs"].values()))["recognition"]
    return "test" if "test" in recognition else "dev"
