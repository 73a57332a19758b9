"""Requests of a server: a batch whose rows come and go, beside `generate` on all rows at once."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases import peers
from benchmarks.cases.decoder_checks import check_compiled
from benchmarks.cases.decoders import pack_decoder
from benchmarks.cases.models import Task
from linattn_lab.timing import NotMeasured
from linattn_models import (
    CompiledDecoder,
    ContinuousBatch,
    DecodingState,
    Request,
    SamplingParams,
)
from linattn_models.decoding.engine import CHUNK

ROWS, TOKENS, WAVES = 64, 256, 4
OFFLINE, ENGINE = "generate", "ContinuousBatch"
EQUAL, MIXED = "one length", "many lengths"
PROMPT = 392
STEPS, READING = "a step", f"a step while {PROMPT} tokens are read"
MEMORY, FOLDER, S3 = "in memory", "in a folder", "on S3"


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


def start_s3() -> str:
    """Starts moto, which answers as S3 does, in another process; returns the URL of a store."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", port],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(server.kill)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
            return "s3://bucket/states"
        time.sleep(0.1)
    raise NotMeasured("moto does not start")


def open_store(place: str, settings: Settings) -> Any:
    """Returns the store of a server that keeps states in this place."""
    module = peers.find("linattn_models.serving")
    if place == MEMORY:
        return module.states.RecentStates(256, 1 << 30)
    if place == FOLDER:
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        return module.SharedStates(folder.name)
    for name in ("s3fs", "moto.server"):
        peers.load(name, settings)
    return module.SharedStates(start_s3())


def keep_states(task: Task, place: str, settings: Settings) -> Method:
    """Returns what a request asks of a store, which continues a state and leaves another."""
    store = open_store(place, settings)
    states = sys.modules["linattn_models.serving.states"].States(store, 1 << 30, 60.0)
    model = task.model(positions="none")
    state = model.generate(1, length=task.length, return_state=True)[1]
    loop = asyncio.Runner()
    atexit.register(loop.close)

    async def keep() -> DecodingState:
        return DecodingState.from_bytes(await states.get(await states.put(state)))

    def find_difference() -> str | None:
        layers = zip(state.layers, loop.run(keep()).layers, strict=True)
        is_same = all(torch.equal(x, y) for pair in layers for x, y in zip(*pair, strict=True))
        return None if is_same else "another state comes back"

    return Method(find_difference, lambda: loop.run(keep()), note=f"{state.nbytes:,} bytes")


def state_case() -> Case:
    """A state that is written and read, by where it is kept."""
    asked = Task(1, language=True, length=16)

    def setup(settings: Settings) -> dict[str, Make]:
        task = asked.for_settings(settings)
        return {x: partial(keep_states, task, x, settings) for x in (MEMORY, FOLDER, S3)}

    return Case(
        "serving/states",
        "What a store adds to a request that continues a state and leaves another: one is read, "
        "one is written. S3 is moto, a server on this machine.",
        setup,
        ratios=((FOLDER, MEMORY), (S3, MEMORY)),
        unit="request", seconds=20, rounds=(20, 200),
    )  # fmt: skip


CASES = (engine_case(), reading_case(), state_case())
