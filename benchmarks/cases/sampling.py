"""What filters and a stop token add to generation by the compiled decoder."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from benchmarks.cases.decoder_checks import check_compiled
from benchmarks.cases.decoders import compiled_decoder
from benchmarks.cases.methods import PEAK_SECONDS
from benchmarks.cases.models import Task
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.processes import apart
from benchmarks.measure.results import Target
from linattn_models import Categorical
from linattn_models.memory import peak_memory

PLAIN, FILTERED = "plain sampling", "top_p=0.9 and a stop token"
TOP_P, STOP = 0.9, 0
TOKENS, SMALL_VOCABULARY, LARGE_VOCABULARY = 128, 256, 32_000
# Targets by vocabulary: the time over that of plain sampling.
AT_MOST = {SMALL_VOCABULARY: 1.1, LARGE_VOCABULARY: 1.25}
# Standard deviations of the logits. Of 32,000 tokens, the nucleus has a few hundred, or most.
SPREADS = {"peaked": 3.5, "flat": 0.5}
THOUSAND, NINE_THOUSAND = 1_000, 9_000
FIRST, LAST = "first thousand", "last thousand"


def _generating(
    task: Task,
    vocabulary: int,
    spread: float,
    *,
    filtered: bool = False,
    temperature: float = 1.0,
    before: int = 0,
) -> Method:
    """Generates from the state after some tokens, by a model that never draws the stop token."""
    model = task.model(head=Categorical(vocabulary), positions="none")
    generator = torch.Generator().manual_seed(1)
    embed_dim = task.num_heads * task.head_dim
    with torch.no_grad():  # its inputs are normalized, so the logits get this spread
        model.output.weight.normal_(std=spread / embed_dim**0.5, generator=generator)
        model.output.bias[STOP] = -50
    decoder = compiled_decoder(model, "float32")
    _, state = decoder.prefill(torch.empty(task.batch, 0, dtype=torch.int64))
    draw = partial(decoder.generate, generator=generator, temperature=temperature)
    if before:
        _, state = draw(state=state, length=before, return_state=True)
    limits: dict[str, Any] = {"top_p": TOP_P} if filtered else {}
    run = partial(
        draw, state=state, length=task.length, **limits, stop_tokens=STOP if filtered else None
    )
    check = partial(check_compiled, model, decoder, task.batch, **limits)
    return Method(check, run, units=task.length)


def _methods(asked: Task, vocabulary: int, spread: float, settings: Settings) -> dict[str, Make]:
    make = partial(
        _generating, asked.sized(settings), 300 if settings.quick else vocabulary, spread
    )
    return {PLAIN: make, FILTERED: partial(make, filtered=True)}


def _flat(settings: Settings) -> dict[str, Make]:
    task = Task(1, length=THOUSAND).sized(settings)
    before = task.length if settings.quick else NINE_THOUSAND
    make = partial(_greedy, task, settings)
    return {FIRST: partial(make, 0), LAST: partial(make, before)}


def _greedy(task: Task, settings: Settings, before: int) -> Method:
    """Generates the most probable tokens; the peak memory is that of a process of its own."""
    made = _from(task, before)
    peak = None
    if settings.device == "cuda":
        peak = partial(_peak, made, "cuda")
    elif not settings.quick:
        peak = partial(
            apart, peak_of_tokens, task, before, threads=settings.threads, seconds=PEAK_SECONDS
        )
    return dataclasses.replace(made, peak=peak)


def _from(task: Task, before: int) -> Method:
    spread = SPREADS["peaked"]
    return _generating(task, SMALL_VOCABULARY, spread, temperature=0.0, before=before)


def peak_of_tokens(task: Task, before: int) -> float:
    """Returns the bytes that generating holds above the weights and the first state."""
    made = _from(task, before)
    made.run()  # starts libraries and thread pools, whose memory is not that of the tokens
    return _peak(made, task.device)


def _peak(made: Method, device: str) -> float:
    return peak_memory(torch.device(device), made.run)[1]


def _case(batch: int, vocabulary: int, spread: str) -> Case:
    shows = f"{FILTERED}: time over plain sampling"
    return Case(
        f"generation/filters/{vocabulary}-{spread}/batch-{batch}",
        f"Tokens by the compiled decoder, vocabulary {vocabulary:,}, {spread} logits, "
        f"batch {batch}: a filter and a stop token beside plain sampling.",
        setup=partial(_methods, Task(batch, length=TOKENS), vocabulary, SPREADS[spread]),
        targets=(Target(shows, FILTERED, PLAIN, at_most=AT_MOST[vocabulary]),),
        unit="step", seconds=20,
    )  # fmt: skip


registry.add(
    *(
        _case(batch, vocabulary, spread)
        for vocabulary in AT_MOST
        for spread in SPREADS
        for batch in (1, 32)
    ),
    Case(
        "generation/flat/10000-tokens",
        "Without an end: the first and the last thousand of 10,000 greedy tokens by the compiled "
        "decoder, their time and the memory that they take.",
        setup=_flat,
        targets=(Target(f"{LAST}: time over the first", LAST, FIRST, at_most=1.1),),
        unit="step",
        seconds=60,
        rounds=(10, 200),
    ),
)
