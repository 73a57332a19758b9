"""Tokens of a language model: prompts, filters and a stop token, and ten thousand in a row."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.decoder_checks import check_compiled
from benchmarks.cases.decoders import LINEAR, compiled_name, pack_decoder
from benchmarks.cases.methods import PEAK_SECONDS, peak_of_run
from benchmarks.cases.models import Task
from linattn_lab.processes import run_apart
from linattn_models import AutoregressiveTransformer, Categorical

PROMPTS, SHORTEST, LONGEST = 16, 10, 1_000
COMPILED = compiled_name("float32")
AT_ONCE, IN_STEPS = "at once", "in steps"
PLAIN, FILTERED = "plain sampling", "top_p=0.9 and a stop token"
TOP_P, STOP = 0.9, 0
TOKENS, SMALL_VOCABULARY, LARGE_VOCABULARY, QUICK_VOCABULARY = 128, 256, 32_000, 300
# Standard deviations of the logits. Of 32,000 tokens, the nucleus has a few hundred, or most.
SPREADS = {"peaked": 3.5, "flat": 0.5}
THOUSAND, NINE_THOUSAND = 1_000, 9_000
FIRST, LAST = "first thousand", "last thousand"


def read_prompts(decoder_name: str, how: str, asked: Task, settings: Settings) -> Method:
    """Returns the prediction of the token after each prompt as a method."""
    task = asked.for_settings(settings)
    model = task.model()
    decoder = model if decoder_name == LINEAR else pack_decoder(model, "float32")
    tokens, lengths = _prompts(model, task.batch)

    @torch.inference_mode()
    def predict() -> Tensor:
        if how == AT_ONCE:
            return decoder.prefill(tokens, lengths)[0]
        _, state = decoder.prefill(tokens[:, :0])
        outputs = []
        for token in tokens.unbind(1):
            parameters, state = decoder.step(token, state)
            outputs.append(parameters)
        return torch.stack(outputs)[lengths - 1, torch.arange(len(tokens))]

    return Method(partial(_prompt_fault, model, tokens, lengths, predict), predict)


def _prompts(model: AutoregressiveTransformer, count: int) -> tuple[Tensor, Tensor]:
    """Random tokens (count, N) and lengths that are spread evenly."""
    longest = int(model.max_length or 0) - 1
    lengths = torch.linspace(min(SHORTEST, longest), longest, count).round().long()
    generator = torch.Generator().manual_seed(2)
    return torch.randint(model.head.levels, (count, longest), generator=generator), lengths


@torch.no_grad()
def _prompt_fault(
    model: AutoregressiveTransformer, tokens: Tensor, lengths: Tensor, predict: Callable[[], Tensor]
) -> str | None:
    """Compares with each prompt alone, in float64."""
    exact = copy.deepcopy(model).double()
    rows = zip(tokens, lengths.tolist(), strict=True)
    alone = torch.cat([exact.predict_next(row[None, :length]) for row, length in rows])
    return oracle.find_disagreement("the predictions", predict(), alone)


def generate_tokens(
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
        cast(Tensor, model.output.bias)[STOP] = -50
    decoder = pack_decoder(model, "float32")
    _, state = decoder.prefill(torch.empty(task.batch, 0, dtype=torch.int64))
    draw = partial(decoder.generate, generator=generator, temperature=temperature)
    if before:
        _, state = draw(state=state, length=before, return_state=True)
    filters: dict[str, Any] = {"top_p": TOP_P} if filtered else {}
    run = partial(
        draw, state=state, length=task.length, **filters, stop_tokens=STOP if filtered else None
    )
    check = partial(check_compiled, model, decoder, task.batch, **filters)
    return Method(check, run, units=task.length)


def greedy_tokens(task: Task, before: int) -> Method:
    """Generates the most probable tokens."""
    return generate_tokens(
        task, SMALL_VOCABULARY, SPREADS["peaked"], temperature=0.0, before=before
    )


def peak_of_tokens(task: Task, before: int) -> float:
    """Returns the bytes that generating holds above the weights and the first state."""
    method = greedy_tokens(task, before)
    method.run()  # starts libraries and thread pools, whose memory is not that of the tokens
    return peak_of_run(method.run, task.device)


def prompts_case() -> Case:
    """Ragged prompts."""
    names = [(name, how) for name in (LINEAR, COMPILED) for how in (AT_ONCE, IN_STEPS)]
    task = Task(PROMPTS, length=LONGEST + 1)

    def setup(settings: Settings) -> dict[str, Make]:
        return {
            f"{name}, {how}": partial(read_prompts, name, how, task, settings)
            for name, how in names
        }

    return Case(
        "generation/prompts/ragged",
        f"The first new token after {PROMPTS} prompts of {SHORTEST} to {LONGEST:,} tokens, read "
        "at once, or in steps.",
        setup,
        ratios=tuple((f"{name}, {IN_STEPS}", f"{name}, {AT_ONCE}") for name in (LINEAR, COMPILED)),
        seconds=60, rounds=(3, 10),
    )  # fmt: skip


def filters_case(batch: int, vocabulary: int, spread: str) -> Case:
    """A filter and a stop token."""

    def setup(settings: Settings) -> dict[str, Make]:
        task = Task(batch, length=TOKENS).for_settings(settings)
        size = QUICK_VOCABULARY if settings.quick else vocabulary
        make = partial(generate_tokens, task, size, SPREADS[spread])
        return {PLAIN: make, FILTERED: partial(make, filtered=True)}

    return Case(
        f"generation/filters/{vocabulary}-{spread}/batch-{batch}",
        f"Tokens by the compiled decoder, vocabulary {vocabulary:,}, {spread} logits, "
        f"batch {batch}: a filter and a stop token beside plain sampling.",
        setup, ratios=((FILTERED, PLAIN),), unit="step", seconds=20,
    )  # fmt: skip


def flat_case() -> Case:
    """The first and the last of many tokens; their peak memory is that of a process of its own."""

    def make(before: int, settings: Settings) -> Method:
        task = Task(1, length=THOUSAND).for_settings(settings)
        method = greedy_tokens(task, min(before, task.length) if settings.quick else before)
        if settings.quick:
            return method
        peak = partial(
            run_apart, peak_of_tokens, task, before, threads=settings.threads, seconds=PEAK_SECONDS
        )
        return dataclasses.replace(method, peak=peak)

    return Case(
        "generation/flat/10000-tokens",
        "Without an end: the first and the last thousand of 10,000 greedy tokens by the compiled "
        "decoder, their time and the memory that they take.",
        lambda settings: {
            FIRST: partial(make, 0, settings), LAST: partial(make, NINE_THOUSAND, settings)
        },
        ratios=((LAST, FIRST),), unit="step", seconds=60, rounds=(10, 200),
    )  # fmt: skip


CASES = (
    prompts_case(),
    *(
        filters_case(batch, vocabulary, spread)
        for vocabulary in (SMALL_VOCABULARY, LARGE_VOCABULARY)
        for spread in SPREADS
        for batch in (1, 32)
    ),
    flat_case(),
)
