"""The recognizers of the paper's table 3, trained for an equal time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from linattn_lab import compare
from linattn_lab.compare import read_times, updates_within, with_steps
from linattn_lab.runs import require_run
from linattn_lab.updates import measure_memory, measure_updates
from linattn_models.training import RunFolder
from speech.batches import BatchCycle, typical_batches
from speech.corpora import Corpus
from speech.models import build_model
from speech.presets import KERNEL, PRESETS, Attention, PresetName, Recipe
from speech.training import length_order, load_training_speech, recognizer_loss, train_model


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
        times = read_times(
            self.out / "timings.json",
            {"corpus": self.corpus.name, "preset": self.preset},
            list(models),
            lambda: self._measured(models, rounds),
        )
        return times.model_dump()

    def _measured(self, models: Mapping[str, Variant], rounds: int) -> dict[str, Any]:
        recipes = {name: x.recipe(self.preset, self.settings) for name, x in models.items()}
        recipe = next(iter(recipes.values()))
        data = load_training_speech(self.corpus, recipe, self.cache)
        order = length_order(data, recipe)
        phones = len(self.corpus.inventory)
        built: dict[str, nn.Module] = {x: build_model(of, phones) for x, of in recipes.items()}
        flags = recipe.training
        memory = measure_memory(
            built, data, recognizer_loss, flags, BatchCycle([order.epoch(0)[-1]])
        )
        times = measure_updates(built, data, recognizer_loss, flags, rounds, typical_batches(order))
        return {"bytes": memory, "batches": len(order.epoch(0)), **times}

    def trained(self, variant: Variant, timing: Mapping[str, Any]) -> RunFolder:
        """The run of a variant, ended: made, resumed, or left as it is if it had ended before."""
        recipe = self._recipe(variant, timing)
        plan = compare.Variant(
            variant.name,
            recipe.training,
            lambda _, out, resume: train_model(self.corpus, recipe, out, self.cache, resume=resume),
            self._described(recipe),
        )
        return compare.Comparison(self.out, [plan], has_ended).run(plan)

    def ended(
        self, chosen: Sequence[Variant], timing: Mapping[str, Any]
    ) -> tuple[dict[str, RunFolder], dict[str, str]]:
        """The runs among the chosen that have ended, and how far the other begun ones are, by name.

        Raises:
            ValueError: a run has other settings or another number of updates.
        """
        folders = {x: RunFolder(self.out / x.name) for x in chosen}
        runs = {x: run for x, run in folders.items() if run.holds_run()}
        for variant, run in runs.items():
            require_run(run, self._described(self._recipe(variant, timing)))
        absent = {x.name: _progress(run) for x, run in runs.items() if not _ended(run)}
        return {x.name: run for x, run in runs.items() if _ended(run)}, absent

    def _recipe(self, variant: Variant, timing: Mapping[str, Any]) -> Recipe:
        recipe = variant.recipe(self.preset, self.settings)
        steps = updates_within(60 * self.minutes, timing["seconds"][variant.model])
        return replace(recipe, training=with_steps(recipe.training, steps))

    def _described(self, recipe: Recipe) -> dict[str, Any]:
        """What must be in the config.json of a run of `recipe`."""
        described: dict[str, Any] = {"preset": self.preset, "corpus": self.corpus.name}
        described |= {"utterances": recipe.utterances, "inventory": list(self.corpus.inventory)}
        described |= {"attention": recipe.attention, "training.seed": recipe.training.seed}
        described |= {"training.steps": recipe.training.steps}
        if recipe.attention != "lstm":
            described |= {"model.ctc_transformer.depthwise_kernel": recipe.depthwise_kernel}
        described |= {"corpus_digest": self.corpus.digest(), "bad_input": recipe.bad_input}
        return described


def has_ended(summary: Mapping[str, Any]) -> bool:
    """Whether the test set was recognized; a run killed before that has a summary, too."""
    return "dev_phoneme_error_rate" in summary["metrics"]


def _ended(run: RunFolder) -> bool:
    return run.summary_file.exists() and has_ended(run.summary())


def _progress(run: RunFolder) -> str:
    lines = run.metrics() if run.metrics_file.exists() else []
    made, steps = max((x["step"] for x in lines), default=0), run.config()["training"]["steps"]
    return f"unfinished, {made:,} of {steps:,} updates"
