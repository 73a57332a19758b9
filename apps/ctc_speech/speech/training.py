"""A run from a recipe to its numbers and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from linattn_core.errors import expected
from linattn_lab.figures import add_figures
from linattn_lab.plots import plot_run
from linattn_models.ctc import ctc_greedy
from linattn_models.training import RunFolder, is_main_process, main_process_first, train
from speech.batches import Batch, LengthOrder, Speech, find_fault
from speech.corpora import Corpus, Split
from speech.error_rate import Errors, evaluate
from speech.features import load_frames
from speech.models import APP, Recognizer, build_model
from speech.presets import DATA_FIELDS, SPEEDS, Recipe
from speech.running import Prior
from speech.units import name_rate

DESCRIBED = (*DATA_FIELDS, "bad_input", "batch_frames", "speed_perturbation", "spec_augment")


def train_model(
    corpus: Corpus, recipe: Recipe, out: Path, cache: Path, *, resume: bool = False
) -> dict[str, Any]:
    """What summary.json in the run folder `out` holds once the recognizer is trained.

    The test set is recognized once, after training.
    """
    config = recipe.training.config()
    with main_process_first():  # the others read its cache
        data = load_speech(corpus, "train", recipe, cache)
        prior = data.prior
        dev = load_speech(corpus, "dev", recipe, cache, prior)
        # The test set is read here too, so that bad input in it ends the run before its training.
        test = load_speech(corpus, "test", recipe, cache, prior)
    order = build_length_order(data, recipe)
    torch.manual_seed(config.seed)  # the weights at the start
    model = build_model(recipe, len(corpus.units.inventory))

    def greedy_errors(model: Recognizer, speech: Speech) -> Errors:
        return evaluate(model, speech, corpus.units, [ctc_greedy])[0]

    train(
        model,
        data,
        loss=draw_chunks(recipe.train_chunks) if recipe.train_chunks else recognizer_loss,
        evaluate=lambda model: greedy_errors(model, dev).metrics(),
        config=config,
        order=order,
        monitor=name_rate(corpus.units.noun),
        out=out,
        resume=resume,
        describe={
            "app": APP,
            **{name: getattr(recipe, name) for name in DESCRIBED},
            "dataset": corpus.name,
            "corpus_digest": corpus.digest(),
            "units": corpus.units.kind,
            "inventory": list(corpus.units.inventory),
            **describe_streaming(recipe, prior),
        },
        model_config=model.to_dict(),
    )
    errors, run = greedy_errors(model.eval(), test), RunFolder(out)
    if is_main_process():
        return _finish(errors, len(order.epoch(0)), run)
    return {**run.summary(), "errors": errors}


def recognizer_loss(model: Recognizer, batch: Batch, chunk: int | None = None) -> torch.Tensor:
    """Nats for each label, the mean over the utterances of a batch."""
    lengths, labels = batch["lengths"], batch["target_lengths"]
    return model.loss(batch["frames"], lengths, batch["targets"], labels, chunk=chunk)


def draw_chunks(chunks: Sequence[int]) -> Callable[[Recognizer, Batch], torch.Tensor]:
    """The same loss with a chunk drawn for each batch, from torch's generator."""

    def loss(model: Recognizer, batch: Batch) -> torch.Tensor:
        return recognizer_loss(model, batch, chunks[int(torch.randint(len(chunks), ()))])

    return loss


def describe_streaming(recipe: Recipe, prior: Prior | None) -> dict[str, Any]:
    """What config.json holds beside the rest of a run with a chunk or running normalization."""
    described: dict[str, Any] = {} if prior is None else {"prior": asdict(prior)}
    if recipe.chunk:
        names = ("chunk", "train_chunks", "decay_range", "augment")
        described |= {name: getattr(recipe, name) for name in names}
    return described


def build_length_order(data: Speech, recipe: Recipe) -> LengthOrder:
    """The batches that `recipe` asks for."""
    training = recipe.training
    return LengthOrder(data.lengths(), training.batch_size, recipe.batch_frames, training.seed)


def _finish(errors: Errors, batches: int, run: RunFolder) -> dict[str, Any]:
    """Writes the errors on the test set and the curve.

    While training, error rates were those of the dev set; in the summary they are those of the test
    set, and the last ones of the dev set have names that begin with "dev_".
    """
    summary = run.summary()
    metrics = summary["metrics"]
    # A run that had ended and is resumed has the values of the dev set under their names already.
    rates = [name for name in errors.metrics() if name.endswith("_error_rate")]
    dev = {f"dev_{name}": metrics.get(f"dev_{name}", metrics[name]) for name in rates}
    summary["metrics"] = {
        **errors.metrics(),
        **dev,
        "seconds_per_epoch": summary["train_seconds"] / summary["steps"] * batches,
        f"test_{errors.noun}s": errors.said,
    }
    run.write_summary(summary)
    add_figures(run.path, summary["metrics"])
    plot_run(run)
    return {**summary, "errors": errors}


def load_speech(
    corpus: Corpus, split: Split, recipe: Recipe, cache: Path, prior: Prior | None = None
) -> Speech:
    """The utterances of a split that can be used; others are refused, or left out and counted.

    Those for training have the speeds and the masks of the recipe.

    Args:
        prior: where running normalization begins, if the recipe asks for it; by default that of
            these utterances.
    """
    normalization, bad_input = recipe.normalize, recipe.bad_input
    training = split == "train"
    speeds = SPEEDS if training and recipe.speed_perturbation else SPEEDS[:1]
    utterances = corpus.splits[split]
    by_speed = [
        load_frames(utterances, normalization, cache, speed=x, bad_input=bad_input) for x in speeds
    ]
    skipped = Counter(corpus.skipped[split])
    frames, classes = [], []
    for item in utterances:
        # Very short audio may be long enough at one speed and not at another.
        if not all(item.id in of for of in by_speed):
            skipped["audio that cannot be read"] += 1
            continue
        of_item, labels = [of[item.id] for of in by_speed], corpus.units.numbers(item.labels)
        fault = find_fault([*map(len, of_item)], labels, recipe.subsampling, recipe.max_frames)
        if fault is None:
            frames.append(of_item)
            classes.append(labels)
            continue
        reason, wanted, got = fault
        if bad_input == "refuse":
            advice = "leave such utterances out with --bad-input skip"
            raise ValueError(expected(f"{corpus.name}, {item.id}", wanted, got, advice))
        skipped[reason] += 1
    if not any(classes):
        wanted = "an utterance with labels that CTC can align"
        raise ValueError(expected(f"{corpus.name}, {split}", wanted, "none"))
    for reason, count in skipped.items() if is_main_process() else ():
        print(f"{corpus.name}, {split}: {count} utterances left out: {reason}", flush=True)
    if recipe.normalize == "running" and prior is None:
        prior = Prior.of([speeds[0] for speeds in frames])
    return Speech(
        frames,
        classes,
        masked=training and recipe.spec_augment,
        prior=prior,
        augmented=training and recipe.augment,
    )
