"""A run from a recipe to its numbers and pictures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from linattn_core.errors import expected
from linattn_lab.plots import plot_run
from linattn_models.ctc import ctc_greedy
from linattn_models.training import RunFolder, train
from speech.augmentation import SpecAugment
from speech.batches import Batch, LengthOrder, Speech, usable
from speech.corpora import Corpus, Split
from speech.dataset import FeatureSettings, framed
from speech.measures import evaluated
from speech.models import APP, Recognizer, build_model
from speech.presets import Recipe

HELD_OUT: tuple[Split, ...] = ("dev", "test")
DESCRIBED = (
    "preset",
    "corpus",
    "attention",
    "normalize",
    "channels",
    "batch_frames",
    "max_frames",
    "speed_perturbation",
    "spec_augment",
    "subsampling",
    "utterances",
    "bad_input",
)


def train_model(
    corpus: Corpus, recipe: Recipe, out: Path, cache: Path, *, resume: bool = False
) -> dict[str, Any]:
    """What summary.json in the run folder `out` holds once the recognizer is trained.

    The test set is recognized once, after training.
    """
    require_one_process()
    config = recipe.training.config()
    data = training_speech(corpus, recipe, cache)
    # The test set is read here too, so that bad input in it ends the run before its training.
    dev, test = (held_out_speech(corpus, split, recipe, cache) for split in HELD_OUT)
    order = length_order(data, recipe)
    torch.manual_seed(config.seed)  # the weights at the start
    model = build_model(recipe, len(corpus.inventory))
    train(
        model,
        data,
        loss=recognizer_loss,
        evaluate=lambda model: evaluated(model, dev, corpus.inventory, ctc_greedy).metrics(),
        config=config,
        order=order,
        monitor="phoneme_error_rate",
        out=out,
        resume=resume,
        describe={
            "app": APP,
            **{name: getattr(recipe, name) for name in DESCRIBED},
            "dataset": corpus.name,
            "corpus_digest": corpus.digest(),
            "inventory": list(corpus.inventory),
        },
        model_config=model.to_dict(),
    )
    return finish(model, test, corpus, len(order.epoch(0)), RunFolder(out))


def recognizer_loss(model: Recognizer, batch: Batch) -> torch.Tensor:
    """Nats for each phone, the mean over the utterances of a batch."""
    return model.loss(**batch)


def length_order(data: Speech, recipe: Recipe) -> LengthOrder:
    """The batches that `recipe` asks for."""
    training = recipe.training
    return LengthOrder(data.lengths(), training.batch_size, recipe.batch_frames, training.seed)


def finish(
    model: Recognizer, test: Speech, corpus: Corpus, batches: int, run: RunFolder
) -> dict[str, Any]:
    """Recognizes the test set, for the first time, and writes numbers and the curve.

    While training, "phoneme_error_rate" was that of the dev set; in the summary it is that of the
    test set, and the last one of the dev set is named "dev_phoneme_error_rate".
    """
    summary = run.summary()
    metrics = summary["metrics"]
    errors = evaluated(model.eval(), test, corpus.inventory, ctc_greedy)
    summary["metrics"] = {
        **errors.metrics(),
        # A run that had ended and is resumed has this value under its own name already.
        "dev_phoneme_error_rate": metrics.get(
            "dev_phoneme_error_rate", metrics["phoneme_error_rate"]
        ),
        "seconds_per_epoch": summary["train_seconds"] / summary["steps"] * batches,
        "test_phones": errors.phones,
    }
    run.write_summary(summary)
    plot_run(run)
    return {**summary, "errors": errors}


def training_speech(corpus: Corpus, recipe: Recipe, cache: Path) -> Speech:
    """The training set, at every speed, with its augmentation."""
    augment = SpecAugment() if recipe.spec_augment else None
    if augment is None and recipe.speed_perturbation:
        augment = SpecAugment(time_masks=0, bin_masks=0)
    return _speech(corpus, "train", recipe, cache, recipe.speeds(), augment)


def held_out_speech(corpus: Corpus, split: Split, recipe: Recipe, cache: Path) -> Speech:
    """A split as it is."""
    return _speech(corpus, split, recipe, cache, (1.0,), None)


def _speech(
    corpus: Corpus,
    split: Split,
    recipe: Recipe,
    cache: Path,
    speeds: tuple[float, ...],
    augment: SpecAugment | None,
) -> Speech:
    settings = FeatureSettings(recipe.normalize, recipe.channels)
    by_speed = [
        framed(
            corpus.splits[split],
            settings,
            cache,
            speed=speed,
            bad_input=recipe.bad_input,
            progress=True,
        )
        for speed in speeds
    ]
    # Very short audio may be long enough at one speed and not at another.
    by_id = [dict(zip((u.id for u in of.utterances), of.frames, strict=True)) for of in by_speed]
    complete = set.intersection(*map(set, by_id))
    utterances = [item for item in by_speed[0].utterances if item.id in complete]
    frames = [[of[item.id] for of in by_id] for item in utterances]
    classes = [corpus.classes(item.phones) for item in utterances]
    skipped: Counter[str] = corpus.skipped if split == "train" else Counter()
    skipped = skipped + by_speed[0].skipped
    places = usable(
        [[len(array) for array in speeds] for speeds in frames],
        classes,
        [f"{corpus.name}, {item.id}" for item in utterances],
        corpus=f"{corpus.name}, {split}",
        subsampling=recipe.subsampling,
        max_frames=recipe.max_frames,
        bad_input=recipe.bad_input,
        skipped=skipped,
    )
    for reason, count in skipped.items():
        print(f"{corpus.name}, {split}: {count} utterances left out: {reason}", flush=True)
    return Speech([frames[p] for p in places], [classes[p] for p in places], augment)


def require_one_process() -> None:
    """Refuses torchrun: batches of similar lengths differ in size, and are not shared.

    Raises:
        ValueError: more than one process.
    """
    processes = PartialState().num_processes
    if processes > 1:
        raise ValueError(expected("training", "one process", f"{processes} under torchrun"))
