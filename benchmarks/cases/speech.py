"""Recognizers of phones: an update at the paper's shape (table 3), and a chunk of a stream.

The frames are noise, one for every 10 ms of audio. Batches that represent an epoch of WSJ hold
utterances of similar lengths, 800 frames on average.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

import torch
from torch import Tensor

import linattn_core
from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.methods import peak_of_run
from linattn_lab.machine import Device
from linattn_lab.processes import run_apart
from linattn_models import Linear, TransformerConfig
from linattn_models.attention import Softmax
from linattn_models.ctc import (
    CTCBiLSTM,
    CTCBiLSTMConfig,
    CTCTransformer,
    CTCTransformerConfig,
    StreamState,
    initial_stream_state,
    stream_step,
)
from linattn_models.training import freed_memory_kept

EPOCH = "speech/epoch"
UTTERANCES = 37_416  # of WSJ's training set
MODELS = ("linear", "lsh-4", "lstm", "softmax")  # of table 3; lstm is the Bi-LSTM
STREAMING = ("linear", "lstm", "softmax")
PHONES, FRAMES_PER_PHONE, FEATURES = 72, 12, 40
BATCH, BATCHES, LONGEST = 4, 6, 2_400  # utterances, batches of an epoch, frames
LENGTHS, FRAMES = (200, 400, 800, 1_600, 2_400, 5_000, 10_000), 10_000
CHUNKS, FRAME_MS, SUBSAMPLING = (4, 8, 16), 10, 4
STREAMS = (1, 64)
KERNEL, PAST_FRAMES, LSTM_DIM, STREAMING_LSTM_DIM = 11, 16, 320, 416
LEARNING_RATE, DROPOUT = 1e-4, 0.1

Recognizer = CTCTransformer | CTCBiLSTM
Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # frames, their lengths, phones, their lengths


def build_recognizer(name: str, settings: Settings, streams: bool = False) -> Recognizer:
    """A model with the same random weights at every call: of table 3, on every frame.

    Args:
        streams: one that reads chunks, for which four frames are one; the states of linear and
            softmax attention are as large, and lstm has as many parameters.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "lstm":
            width = STREAMING_LSTM_DIM if streams else LSTM_DIM
            lstm = CTCBiLSTMConfig(
                PHONES,
                num_layers=2 if settings.quick else 3,
                hidden_dim=16 if settings.quick else width,
                dropout=DROPOUT,
                subsampling=SUBSAMPLING if streams else 1,
                bidirectional=not streams,
            )
            return CTCBiLSTM(lstm).to(settings.device)
        sizes = (2, 2, 16, 64) if settings.quick else (9, 6, 32, 768)
        config = TransformerConfig(*sizes, dropout=DROPOUT, is_causal=streams)
        if not streams:
            paper = CTCTransformerConfig(PHONES, config.with_attention(name))
            return CTCTransformer(paper).to(settings.device)
        attention = Linear(decay="learned") if name == "linear" else Softmax(past_size=PAST_FRAMES)
        streaming = CTCTransformerConfig(
            PHONES,
            config.with_attention(attention),
            subsampling=SUBSAMPLING,
            depthwise_kernel=KERNEL,
            positions="none",
        )
        return CTCTransformer(streaming).to(settings.device)


def spread_lengths() -> list[list[int]]:
    """Batches of an epoch: the lengths of WSJ are spread as the square of an even spread."""
    count = BATCH * BATCHES
    lengths = [round(LONGEST * ((place + 0.5) / count) ** 2) for place in range(count)]
    lengths = [max(length, FRAMES_PER_PHONE) for length in lengths]
    return [lengths[begin : begin + BATCH] for begin in range(0, count, BATCH)]


def make_batch(lengths: Sequence[int], device: Device) -> Batch:
    """Utterances of noise, with a phone for every 12 frames."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(len(lengths), max(lengths), FEATURES, generator=generator)
    ends = torch.tensor(lengths)
    counts = ends // FRAMES_PER_PHONE
    phones = torch.randint(1, PHONES + 1, (len(ends), int(counts.max())), generator=generator)
    return frames.to(device), ends.to(device), phones.to(device), counts.to(device)


def make_update(model: Recognizer, batches: Sequence[Batch]) -> Callable[[], None]:
    """Makes an update on each of the batches."""
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)

    def run() -> None:
        for batch in batches:
            optimizer.zero_grad()
            model.loss(*batch).backward()
            optimizer.step()

    return run


def update_fault(model: Recognizer) -> str | None:
    """Compares log-probabilities and the frames' gradient with those in float64.

    The utterances fit into one chunk of LSH attention, which then depends on no hash.
    """
    device: Device = "cuda" if model.output.weight.is_cuda else "cpu"
    frames, lengths, phones, counts = make_batch((24, 12), device)
    tested = copy.deepcopy(model).eval()

    def results(of: Recognizer, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        leaf = frames.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(of.loss(leaf, lengths, phones, counts), leaf)
        return of(leaf).detach(), gradient

    actual = results(tested, torch.float32)
    with linattn_core.use_backend("reference"):
        exact = results(copy.deepcopy(tested).double(), torch.float64)
    return oracle.find_first_disagreement(("frames'",), actual, exact)


def update_method(name: str, batches: Sequence[Sequence[int]], settings: Settings) -> Method:
    """Updates of a model on batches of utterances of these lengths."""
    model = build_recognizer(name, settings).train()
    device = settings.device
    run = make_update(model, [make_batch(lengths, device) for lengths in batches])
    peak = None
    if device == "cuda":
        peak = partial(peak_of_run, run, device)
    elif not settings.quick:
        threads = settings.threads
        peak = partial(run_apart, peak_of_update, name, batches[-1], settings, threads=threads)
    return Method(partial(update_fault, model), run, peak=peak, units=sum(map(len, batches)))


def peak_of_update(name: str, lengths: Sequence[int], settings: Settings) -> float:
    """The bytes by which memory rises during an update, after a small one that starts libraries."""
    model = build_recognizer(name, settings).train()
    device = settings.device
    make_update(model, [make_batch(lengths[:1], device)])()
    return peak_of_run(make_update(model, [make_batch(lengths, device)]))


def update_setup(batches: Sequence[Sequence[int]], settings: Settings) -> dict[str, Make]:
    """An update of each model."""
    if settings.quick:
        batches = [[min(length, 60) for length in lengths[:2]] for lengths in batches[:2]]
    return {name: partial(update_method, name, batches, settings) for name in MODELS}


def stream_setup(chunk: int, settings: Settings) -> dict[str, Make]:
    """A chunk of one stream, and of many in one batch, by each model that streams."""
    return {
        f"{name}, {count} streams" if count > 1 else f"{name}, alone": partial(
            stream_method, name, chunk, min(count, 2) if settings.quick else count, settings
        )
        for count in STREAMS
        for name in STREAMING
    }


def stream_method(name: str, chunk: int, count: int, settings: Settings) -> Method:
    """The next chunk of `count` streams, from a state."""
    model = build_recognizer(name, settings, streams=True).eval()
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(count, 3 * chunk * SUBSAMPLING, FEATURES, generator=generator)
    pieces = frames.to(settings.device).chunk(3, dim=1)
    state: StreamState = initial_stream_state(model, count)
    outputs = []
    for piece in pieces:
        before, (output, state) = state, stream_step(model, piece, state)
        outputs.append(output)

    @torch.no_grad()
    def check() -> str | None:
        exact = copy.deepcopy(model).double()(torch.cat(pieces, 1).double(), chunk=chunk)
        return oracle.find_disagreement("the output", torch.cat(outputs, 1), exact)

    return Method(check, partial(stream_step, model, pieces[-1], before), units=count)


def make_cases(device: Device) -> list[Case]:
    """The cases of a device."""
    of_epoch = spread_lengths()
    epoch = Case(
        EPOCH,
        f"An update per utterance, of {BATCHES} batches of {BATCH} that represent an epoch of WSJ, "
        f"which has {UTTERANCES:,} utterances: the paper's recognizers, on every frame, float32.",
        partial(update_setup, of_epoch),
        ratios=tuple(("softmax", name) for name in MODELS[:-1]),
        unit="utterance", seconds=120, rounds=(3, 5), device=device, around=freed_memory_kept,
    )  # fmt: skip
    updates = [
        Case(
            f"speech/update/{length}",
            f"The same for utterances of {length:,} frames, about {FRAMES:,} in a batch.",
            partial(update_setup, [[length] * (FRAMES // length)]),
            series=f"an update per utterance, about {FRAMES:,} frames in a batch", at=length,
            unit="utterance", seconds=20, rounds=(3, 5), device=device, around=freed_memory_kept,
        )
        for length in LENGTHS
    ]  # fmt: skip
    streams = [
        Case(
            f"speech/stream/{chunk * SUBSAMPLING * FRAME_MS}-ms",
            f"{chunk * SUBSAMPLING * FRAME_MS} ms of a stream, per stream, without the search for "
            "phones: 9 layers, 6 heads of 32, four frames are one; three layers of 416 for lstm.",
            partial(stream_setup, chunk),
            ratios=tuple((f"{name}, alone", "linear, alone") for name in STREAMING[1:]),
            unit="chunk", seconds=10, device=device,
        )
        for chunk in CHUNKS
    ]  # fmt: skip
    return [epoch, *updates, *streams]


CASES = tuple(case for device in get_args(Device) for case in make_cases(device))
