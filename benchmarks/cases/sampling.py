"""What filters and a stop token add to generation by the compiled decoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.cases.decoder_checks import MOST_OTHER_DRAWS
from benchmarks.cases.decoders import compiled_decoder
from benchmarks.cases.models import Task
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.results import Target
from linattn_models import Categorical, CompiledDecoder, DecodingState
from linattn_models.decoding.filters import Filters

PLAIN, FILTERED = "plain sampling", "top_p=0.9 and a stop token"
OPTIONS: Mapping[str, dict[str, Any]] = {
    PLAIN: {},
    FILTERED: {"top_p": 0.9, "stop_tokens": 0},
    "top_k=50": {"top_k": 50},
    "min_p=0.05": {"min_p": 0.05},
}
TOKENS, SMALL_VOCABULARY, LARGE_VOCABULARY = 128, 256, 32_000
# By vocabulary, the time over that of plain sampling.
AT_MOST = {SMALL_VOCABULARY: 1.1, LARGE_VOCABULARY: 1.25}
# Standard deviations of the logits: the nucleus is a few hundred tokens of 32,000, or most.
SPREADS = {"peaked": 3.5, "flat": 0.5}
CHECKED_STEPS = 32
THOUSAND, NINE_THOUSAND = 1_000, 9_000
FIRST, LAST = "first thousand", "last thousand"


def _decoder(task: Task, vocabulary: int, spread: float) -> CompiledDecoder:
    """Of a model with random weights that never draws token 0, so that no row stops."""
    model = task.model(head=Categorical(vocabulary), positions="none")
    generator = torch.Generator().manual_seed(1)
    embed_dim = task.num_heads * task.head_dim
    with torch.no_grad():  # the output reads normalized vectors
        model.output.weight.normal_(std=spread / embed_dim**0.5, generator=generator)
        model.output.bias[0] = -1e4
    return compiled_decoder(model, "float32")


@torch.no_grad()
def _check(decoder: CompiledDecoder, state: DecodingState, options: dict[str, Any]) -> str | None:
    """The tokens drawn in steps are those that the head draws from filtered logits."""
    limits = {name: x for name, x in options.items() if name != "stop_tokens"}
    filters = Filters(**limits)
    generator, again = (torch.Generator().manual_seed(3) for _ in range(2))
    state, others = state.clone(), 0
    token = torch.ones(state.batch, dtype=torch.int64)
    for _ in range(CHECKED_STEPS):
        parameters, token, state = decoder.step_and_sample(
            token, state, generator=generator, **limits
        )
        own = decoder.head.sample(filters(parameters, 1.0), generator=again)
        others += int((token != own).sum())
    count = state.batch * CHECKED_STEPS
    if others > max(1, MOST_OTHER_DRAWS * count):
        return f"{others} of {count} tokens drawn are not the head's own"
    return None


def _generating(
    task: Task, vocabulary: int, spread: float, options: dict[str, Any], before: int = 0
) -> Method:
    """Generates from the state after some tokens."""
    decoder = _decoder(task, vocabulary, spread)
    generator = torch.Generator().manual_seed(0)
    _, state = decoder.prefill(torch.empty(task.batch, 0, dtype=torch.int64))
    if before:
        _, state = decoder.generate(
            state=state, length=before, generator=generator, return_state=True
        )
    how: dict[str, Any] = {"state": state, "length": task.length, "generator": generator}
    run = partial(decoder.generate, **how, **options)
    return Method(partial(_check, decoder, state, options), run, units=task.length)


def _methods(asked: Task, vocabulary: int, spread: float, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    vocabulary = 300 if settings.quick else vocabulary
    return {
        name: partial(_generating, task, vocabulary, spread, options)
        for name, options in OPTIONS.items()
    }


def _flat(settings: Settings) -> dict[str, Make]:
    task = Task(1, length=THOUSAND).sized(settings)
    before = task.length if settings.quick else NINE_THOUSAND
    make = partial(_generating, task, SMALL_VOCABULARY, SPREADS["peaked"], {})
    return {FIRST: make, LAST: partial(make, before=before)}


def _case(batch: int, vocabulary: int, spread: str) -> Case:
    shows = f"{FILTERED}: time over plain sampling"
    return Case(
        f"generation/filters/{vocabulary}-{spread}/batch-{batch}",
        f"Tokens by the compiled decoder, vocabulary {vocabulary:,}, {spread} logits, "
        f"batch {batch}: filters and a stop token beside plain sampling.",
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
        "Without an end: the first and the last thousand of 10,000 tokens by the compiled decoder.",
        setup=_flat,
        targets=(Target(f"{LAST}: time over the first", LAST, FIRST, at_most=1.1),),
        unit="step",
    ),
)
