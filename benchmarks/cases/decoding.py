"""The paper's MNIST model with random weights: single steps, and whole images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.case import Case, Make, Settings
from benchmarks.cases import decoders
from benchmarks.cases.decoders import LINEAR, STATEFUL_SOFTMAX, compiled_name
from benchmarks.cases.models import MODEL, WEIGHT_BYTES, Task
from benchmarks.cases.peers import FAST_TRANSFORMERS
from linattn_models import Linear

COMPILED = {weights: compiled_name(weights) for weights in WEIGHT_BYTES}
READING = {weights: f"reading the weights ({weights})" for weights in WEIGHT_BYTES}
ATTENTIONS = {"decay": Linear(decay="fixed"), "a window of 64": Linear(window_size=64)}
LANGUAGE, LANGUAGE_EAGER = "language model (compiled)", "language model (eager)"
# Of the language model that a GPU decodes: without its window, and with it.
WINDOWS = {"": Linear(decay="gated"), ", a window of 64": Linear(decay="gated", window_size=64)}
RECORDED, FUSED = "recorded", "recorded, fused"
FIRST, LAST = "first step", "784th step"
GPU: dict[str, Any] = {"device": "cuda", "rounds": (2, 10)}
# By the end of a case's name: the number of images, and fields of the case.
STEPS = {"one-image": 1, "batch-100": 100}
IMAGES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"seconds": 75}),
    (100, {"seconds": 300, "rounds": (3, 5)}),
    (1, {"seconds": 8, **GPU}),
    (100, {"seconds": 6, **GPU}),
    (10_000, {"seconds": 25, **GPU}),
)

Setup = Callable[[Task, Settings], dict[str, Make]]


def first_and_last(task: Task, settings: Settings) -> dict[str, Make]:
    """Steps of both attentions at both ends of an image."""
    return {
        f"{name}, {ordinal}": partial(decoders.step_eagerly, attention, task, position)
        for name, attention in ((LINEAR, "linear"), (STATEFUL_SOFTMAX, "softmax"))
        for ordinal, position in ((FIRST, 0), (LAST, task.length - 1))
    }


def compiled_steps(task: Task, settings: Settings) -> dict[str, Make]:
    """Steps of linear attention by every decoder, and reading the weights alone."""
    return {
        **{name: partial(decoders.step_compiled, each, task) for each, name in COMPILED.items()},
        **{name: partial(decoders.read_weights, each, task) for each, name in READING.items()},
        LINEAR: partial(decoders.step_eagerly, "linear", task, task.length // 2),
        FAST_TRANSFORMERS: partial(decoders.step_by_peer, task, settings),
    }


def step_with_options(task: Task, settings: Settings) -> dict[str, Make]:
    """Compiled steps with a decay or a window beside those without, and of a language model."""
    text = dataclasses.replace(task, language=True)
    return {
        COMPILED["float32"]: partial(decoders.step_compiled, "float32", task),
        **{
            name: partial(decoders.step_compiled, "float32", task, attention)
            for name, attention in ATTENTIONS.items()
        },
        LANGUAGE: partial(decoders.step_compiled, "float32", text),
        LANGUAGE_EAGER: partial(decoders.step_eagerly, None, text, task.length // 2),
    }


def whole_images(task: Task, settings: Settings) -> dict[str, Make]:
    """Images by every decoder."""
    return {
        **{
            name: partial(decoders.generate_compiled, each, task) for each, name in COMPILED.items()
        },
        LINEAR: partial(decoders.generate_eagerly, "linear", task),
        FAST_TRANSFORMERS: partial(decoders.generate_by_peer, task, settings),
        STATEFUL_SOFTMAX: partial(decoders.generate_eagerly, "softmax", task),
    }


def language_model(task: Task, settings: Settings) -> dict[str, Make]:
    """A language model on a GPU, its kernels recorded as they are and fused."""
    text = dataclasses.replace(task, language=True)
    return {
        name + window: partial(
            decoders.generate_compiled, "bfloat16", text, attention, fuse=name == FUSED
        )
        for window, attention in WINDOWS.items()
        for name in (RECORDED, FUSED)
    }


def decoding_case(name: str, shows: str, methods: Setup, task: Task, **fields: Any) -> Case:
    """A case whose methods decode the images of a task."""

    def setup(settings: Settings) -> dict[str, Make]:
        return methods(task.for_settings(settings), settings)

    return Case(name, shows, setup, **fields)


def steps(name: str, batch: int) -> tuple[Case, ...]:
    """Single steps, eager and compiled."""
    over_plain = tuple((name, COMPILED["float32"]) for name in ATTENTIONS)
    growth = tuple((f"{x}, {LAST}", f"{x}, {FIRST}") for x in (LINEAR, STATEFUL_SOFTMAX))
    over_reading = tuple((COMPILED[each], READING[each]) for each in WEIGHT_BYTES)
    over_ours = tuple((FAST_TRANSFORMERS, name) for name in (*COMPILED.values(), LINEAR))
    return (
        decoding_case(
            f"decoding/steps/{name}",
            f"The last step costs what the first did: batch {batch}, {MODEL}.",
            first_and_last, Task(batch), ratios=growth, unit="step", seconds=10,
        ),
        decoding_case(
            f"decoding/compiled-steps/{name}",
            f"Steps with their draws, as generate makes them: batch {batch}, {MODEL}.",
            compiled_steps, Task(batch), ratios=(*over_reading, *over_ours), unit="step",
        ),
        decoding_case(
            f"decoding/options/{name}",
            f"Steps with a decay or a window, and of a language model: batch {batch}, {MODEL}; the "
            "language model has the layers of `TransformerConfig.language`.",
            step_with_options, Task(batch), ratios=(*over_plain, (LANGUAGE_EAGER, LANGUAGE)),
            unit="step",
        ),
    )  # fmt: skip


def images(batch: int, **fields: Any) -> Case:
    """Whole images."""
    ratios = tuple(
        (rival, ours)
        for rival in (FAST_TRANSFORMERS, STATEFUL_SOFTMAX)
        for ours in (*COMPILED.values(), LINEAR)
    )
    return decoding_case(
        f"generation/images/{'one-image' if batch == 1 else f'batch-{batch}'}",
        f"Whole images from start to end, {batch:,} at once: {MODEL}.",
        whole_images, Task(batch), ratios=ratios, unit="image", **fields,
    )  # fmt: skip


CASES = (
    *(case for name, batch in STEPS.items() for case in steps(name, batch)),
    *(images(batch, **fields) for batch, fields in IMAGES),
    decoding_case(
        "generation/language-model/one-text",
        "64 tokens of one text, by 4 layers of `TransformerConfig.language`, 16 heads of 128, in "
        "bfloat16.",
        language_model, Task(1, 4, 16, 128, length=64),
        ratios=tuple((RECORDED + x, FUSED + x) for x in WINDOWS), unit="text", seconds=4, **GPU,
    ),
)  # fmt: skip
