"""The recognizers of the paper's table 3, trained for an equal time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linattn_models.ctc import ctc_greedy
from linattn_models.training import (
    Panel,
    Points,
    RunFolder,
    measure_memory,
    measure_updates,
    plot_panels,
    points,
    recorded_times,
    run_summary,
    trained_run,
    updates_within,
    with_steps,
)
from speech.batches import LongestOrder, Speech, TypicalOrder
from speech.corpora import Corpus
from speech.measures import evaluated
from speech.models import APP, build_model, load_run
from speech.presets import KERNEL, PRESETS, Attention, PresetName, Recipe
from speech.training import (
    held_out_speech,
    length_order,
    recognizer_loss,
    train_model,
    training_speech,
)

YLABEL = "phoneme error rate, dev set"


@dataclass(frozen=True)
class Variant:
    """One model of a comparison.

    Attributes:
        convolution: whether a convolution stands before each block.
    """

    attention: Attention
    convolution: bool = False
    seed: int = 0

    @property
    def model(self) -> str:
        """The name of the model, whatever its seed."""
        return f"{self.attention}-conv" if self.convolution else self.attention

    @property
    def name(self) -> str:
        """The name of the run and of its folder."""
        return f"{self.model}-seed{self.seed}" if self.seed else self.model

    def recipe(self, preset: PresetName, settings: Mapping[str, Any]) -> Recipe:
        """How it is trained, apart from its steps."""
        recipe = PRESETS[preset](self.attention)
        kernel = KERNEL if self.convolution else 0
        training = replace(recipe.training, seed=self.seed)
        return replace(recipe, **settings, depthwise_kernel=kernel, training=training)


def variants(attentions: Sequence[Attention], convolution: bool, seed: int = 0) -> list[Variant]:
    """Every attention plain, and with `convolution` the transformers with it as well."""
    plain = [Variant(attention, seed=seed) for attention in attentions]
    added = [replace(x, convolution=True) for x in plain if x.attention != "lstm" and convolution]
    return [*plain, *added]


@dataclass(frozen=True)
class Comparison:
    """What is compared on which corpus, and where it goes.

    Attributes:
        settings: of every recipe, such as the corpus.
        out: the folder of timings.json and of the run folders.
        minutes: the budget of each model.
    """

    corpus: Corpus
    preset: PresetName
    settings: Mapping[str, Any]
    out: Path
    cache: Path
    minutes: float

    def timing(self, attentions: Sequence[Attention], rounds: int) -> dict[str, Any]:
        """Seconds and bytes of an update by model, and batches per epoch, as in timings.json."""
        models = {x.model: x for x in variants(attentions, convolution=True)}
        return recorded_times(
            self.out / "timings.json",
            {"corpus": self.corpus.name, "preset": self.preset},
            list(models),
            lambda: self._measured(models, rounds),
        )

    def _measured(
        self, models: Mapping[str, Variant], rounds: int
    ) -> tuple[dict[str, float], dict[str, object]]:
        recipes = {name: x.recipe(self.preset, self.settings) for name, x in models.items()}
        recipe = next(iter(recipes.values()))
        data = training_speech(self.corpus, recipe, self.cache)
        order = length_order(data, recipe)
        phones = len(self.corpus.inventory)
        built: dict[str, nn.Module] = {x: build_model(of, phones) for x, of in recipes.items()}
        flags = recipe.training
        memory = measure_memory(built, data, recognizer_loss, flags, LongestOrder(order))
        seconds, where = measure_updates(
            built, data, recognizer_loss, flags, rounds, TypicalOrder(order)
        )
        others = {"bytes": memory, "batches": len(order.epoch(0)), "rounds": rounds}
        return seconds, {**others, "environment": where}

    def trained(self, variant: Variant, timing: Mapping[str, Any]) -> RunFolder:
        """The run of a variant, ended: made, resumed, or left as it is if it had ended before."""
        recipe, out = variant.recipe(self.preset, self.settings), self.out / variant.name
        steps = updates_within(60 * self.minutes, timing["seconds"][variant.model])
        recipe = replace(recipe, training=with_steps(recipe.training, steps))
        settings: dict[str, Any] = {"preset": self.preset, "corpus": self.corpus.name}
        settings |= {"attention": variant.attention, "training.seed": variant.seed}
        settings |= {"training.steps": steps}
        if variant.attention != "lstm":
            settings |= {"model.ctc_transformer.depthwise_kernel": recipe.depthwise_kernel}
        print(f"\n{variant.name}, {steps:,} updates, in {out}", flush=True)
        return trained_run(
            out,
            lambda resume: train_model(self.corpus, recipe, out, self.cache, resume=resume),
            settings,
            ended=has_ended,
        )

    def ended(self, chosen: Sequence[Variant]) -> dict[str, RunFolder]:
        """The runs among the chosen that have ended, by name."""
        runs = {x.name: RunFolder(self.out / x.name) for x in chosen}
        summaries = {name: run for name, run in runs.items() if run.summary_file.exists()}
        return {name: run for name, run in summaries.items() if has_ended(run.summary())}

    def averaged(self, run: RunFolder, average: int) -> dict[str, float]:
        """Error rates with the mean of the newest checkpoints' weights: "dev" and "test"."""
        trained = load_run(run.path, average)
        recipe = PRESETS[self.preset]("linear")
        recipe = replace(recipe, **self.settings)

        def rate(speech: Speech) -> float:
            return evaluated(trained.model, speech, self.corpus.inventory, ctc_greedy).rate

        with torch.no_grad():
            dev = rate(held_out_speech(self.corpus, "dev", recipe, self.cache))
            test = rate(held_out_speech(self.corpus, "test", recipe, self.cache))
        return {"dev": dev, "test": test}


def has_ended(summary: Mapping[str, Any]) -> bool:
    """Whether the test set was recognized; a run killed before that has a summary, too."""
    return "dev_phoneme_error_rate" in summary["metrics"]


def results_of(
    comparison: Comparison,
    runs: Mapping[str, RunFolder],
    timing: Mapping[str, Any],
    average: int,
) -> dict[str, Any]:
    """The content of results.json: budget, timing, and of each run its summary."""
    summaries = {name: run_summary(run, APP) for name, run in runs.items()}
    if average > 1:
        for name, run in runs.items():
            summaries[name]["averaged"] = comparison.averaged(run, average)
    return {
        "app": APP,
        "corpus": comparison.corpus.name,
        "preset": comparison.preset,
        "minutes": comparison.minutes,
        "average": average,
        "timing": dict(timing),
        "runs": summaries,
    }


def draw(path: Path, runs: Mapping[str, RunFolder], timing: Mapping[str, Any]) -> None:
    """The paper's figure 5: the error rate over updates, and over time at the measured pace."""
    pace = {name: timing["seconds"][name.partition("-seed")[0]] for name in runs}
    over_updates = {name: curve(run) for name, run in runs.items()}
    over_time = {name: curve(run, pace[name] / 60) for name, run in runs.items()}
    panels = [Panel("updates", over_updates), Panel("minutes of updates", over_time)]
    plot_panels(path, panels, ylabel=YLABEL, log_scale=True)


def curve(run: RunFolder, scale: float = 1.0) -> Points:
    """The error rate of the dev set over `scale` times the step."""
    return points(run.metrics(), "phoneme_error_rate", split="eval", scale=scale)
