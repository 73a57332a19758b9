"""Requests of a server: a batch whose rows come and go, beside `generate` on all rows at once."""

from __future__ import annotations

import time
from functools import partial

import torch

from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.decoder_checks import check_compiled
from benchmarks.cases.decoders import pack_decoder
from benchmarks.cases.models import Task
from linattn_models import CompiledDecoder, ContinuousBatch, Request, SamplingParams
from linattn_models.decoding.engine import CHUNK

ROWS, TOKENS, WAVES = 64, 256, 4
OFFLINE, ENGINE = "generate", "ContinuousBatch"
EQUAL, MIXED = "one length", "many lengths"
PROMPT = 392
STEPS, READING = "a step", f"a step while {PROMPT} tokens are read"


def make_lengths(task: Task, lengths: str) -> list[int]:
    """Returns the tokens of each request: as many for all rows, or an eighth to all of them."""
    if lengths == EQUAL:
        return [task.length] * task.batch
    count = WAVES * task.batch
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    numbers: list[int] = (
        torch.linspace(task.length / 8, task.length, count).ceil().long()[order].tolist()
    )
    return numbers


def generate_in_groups(decoder: CompiledDecoder, rows: int, lengths: list[int]) -> list[list[int]]:
    """Returns the tokens of requests; each group of rows waits for its longest."""
    drawn: list[list[int]] = []
    for first in range(0, len(lengths), rows):
        own = lengths[first : first + rows]
        seeds = list(range(first, first + len(own)))
        tokens = decoder.generate(len(own), length=own, seeds=seeds).tolist()
        drawn += [row[:length] for row, length in zip(tokens, own, strict=True)]
    return drawn


def answer_requests(batch: ContinuousBatch, lengths: list[int]) -> list[list[int]]:
    """Returns the tokens of requests; a row that ends is free for the next one."""
    numbers = [
        batch.add(Request(length=length, sampling=SamplingParams(seed=seed)))
        for seed, length in enumerate(lengths)
    ]
    drawn: dict[int, list[int]] = {number: [] for number in numbers}
    while batch.has_work:
        for output in batch.step():
            drawn[output.request] += output.tokens
    return list(drawn.values())


def draw_tokens(by: str, lengths: str, asked: Task, settings: Settings) -> Method:
    """Returns the drawing of all requests as a method."""
    task = asked.for_settings(settings)
    model = task.model(positions="none")
    decoder = pack_decoder(model, "float32")
    numbers = make_lengths(task, lengths)
    offline = partial(generate_in_groups, decoder, task.batch, numbers)
    if by == OFFLINE:
        return Method(
            partial(check_compiled, model, decoder, task.batch), offline, units=sum(numbers)
        )
    batch = ContinuousBatch(
        decoder, max_num_seqs=task.batch, max_num_batched_tokens=task.batch + CHUNK
    )
    run = partial(answer_requests, batch, numbers)

    def find_difference() -> str | None:
        return None if run() == offline() else f"the tokens differ from those of {OFFLINE}"

    return Method(find_difference, run, units=sum(numbers))


def engine_case() -> Case:
    """The same requests by both."""
    task = Task(ROWS, length=TOKENS, language=True)
    names = [(by, lengths) for lengths in (EQUAL, MIXED) for by in (OFFLINE, ENGINE)]

    def setup(settings: Settings) -> dict[str, Make]:
        return {
            f"{by}, {lengths}": partial(draw_tokens, by, lengths, task, settings)
            for by, lengths in names
        }

    return Case(
        "serving/engine",
        f"Requests for {TOKENS} tokens in {ROWS} busy rows, and {WAVES * ROWS} requests for "
        f"{TOKENS // 8} to {TOKENS}, each with a seed: a language model, compiled.",
        setup,
        ratios=tuple((f"{OFFLINE}, {each}", f"{ENGINE}, {each}") for each in (EQUAL, MIXED)),
        unit="token", seconds=120, rounds=(3, 10),
    )  # fmt: skip


def time_step(batch: ContinuousBatch, rows: int, prompt: int) -> float:
    """Returns the seconds of a step of busy rows, while a prompt is read if there is one."""
    numbers = [batch.add(Request(length=2 * PROMPT)) for _ in range(rows)]
    while batch.num_seqs_running < rows:
        batch.step()
    if prompt:
        numbers.append(batch.add(Request([0] * prompt, prompt + 1)))
    began, steps = time.perf_counter(), 0
    while batch.num_requests_waiting if prompt else steps < 16:
        steps += max(len(output.tokens) for output in batch.step())
    seconds = time.perf_counter() - began
    for number in numbers:
        batch.cancel(number)
    while batch.has_work:
        batch.step()
    return seconds / steps


def reading_case() -> Case:
    """Steps of busy rows, alone and beside a prompt."""
    asked = Task(ROWS, language=True)

    def make(prompt: int, settings: Settings) -> Method:
        task = asked.for_settings(settings)
        model = task.model(positions="none")
        decoder = pack_decoder(model, "float32")
        batch = ContinuousBatch(
            decoder, max_num_seqs=task.batch, max_num_batched_tokens=task.batch + CHUNK
        )
        return Method(
            partial(check_compiled, model, decoder, task.batch),
            measure=partial(time_step, batch, task.batch - 1, prompt),
        )

    def setup(settings: Settings) -> dict[str, Make]:
        return {
            name: partial(make, prompt, settings)
            for name, prompt in ((STEPS, 0), (READING, PROMPT))
        }

    return Case(
        "serving/reading",
        f"A step of {ROWS - 1} busy rows, alone and while a prompt joins them.",
        setup,
        ratios=((READING, STEPS),),
        unit="step", seconds=60, rounds=(5, 30),
    )  # fmt: skip


CASES = (engine_case(), reading_case())
