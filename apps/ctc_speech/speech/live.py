"""What a listener notices while recordings arrive: delays, revisions, computing time."""

from __future__ import annotations

import io
import itertools
import pickle
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from linattn_models.ctc import NGram, initial_stream_state, stream_step
from speech.audio import RATE, Samples
from speech.export import export_recognizer
from speech.features import BINS
from speech.models import TrainedRun
from speech.online import OnlineRecognizer, OnlineStream, require_streaming

PIECE = RATE // 100  # samples of 10 ms, which arrive together


@dataclass(frozen=True)
class LiveMeasures:
    """Of some recordings.

    Attributes:
        real_time_factor: seconds of computing for a second of audio of every stream.
        delay_p50, delay_p95: seconds of audio from the end of a phone's last aligned frame to the
            result from which on it stays, without computing; None without phones.
        revised: share of the results that change phones of the result before.
        state_bytes: of one stream.
    """

    real_time_factor: float
    delay_p50: float | None
    delay_p95: float | None
    revised: float
    state_bytes: int


class Listener:
    """Follows the results of one recording.

    Args:
        recognizer: of the stream.
        samples: at 16 kHz.
    """

    def __init__(self, recognizer: OnlineRecognizer, samples: Samples) -> None:
        self.recognizer, self.samples = recognizer, samples
        self.stream = recognizer.create_stream()
        self.results = self.revised = 0
        self._heard = 0  # samples
        self._tokens: tuple[str, ...] = ()
        self._since: list[float] = []  # seconds of audio from which on each phone stays

    def hear(self) -> None:
        """The next piece, or the end."""
        piece = self.samples[self._heard : self._heard + PIECE]
        self._heard += len(piece)
        if len(piece):
            self.stream.accept_waveform(RATE, piece)
        else:
            self.stream.input_finished()

    def look(self) -> None:
        """Reads the result."""
        tokens, before = self.recognizer.result(self.stream).tokens, self._tokens
        same = 0
        while same < min(len(tokens), len(before)) and tokens[same] == before[same]:
            same += 1
        self.results += 1
        self.revised += same < len(before)
        self._since = self._since[:same] + [self._heard / RATE] * (len(tokens) - same)
        self._tokens = tokens

    def delays(self) -> list[float]:
        """Seconds, for each phone of the last result."""
        times = self.recognizer.result(self.stream).times
        return [come - end for come, (_, end) in zip(self._since, times, strict=True)]


def measure_live(
    recognizer: OnlineRecognizer, recordings: Sequence[Samples], side_by_side: int = 1
) -> LiveMeasures:
    """Streams the recordings in pieces of 10 ms, some of them side by side in one batch."""
    listeners = [Listener(recognizer, samples) for samples in recordings]
    seconds = audio = 0.0
    for begin in range(0, len(listeners), side_by_side):
        group = listeners[begin : begin + side_by_side]
        start = time.perf_counter()
        listen(recognizer, group)
        seconds += time.perf_counter() - start
        audio += max(len(each.samples) for each in group) / RATE
    delays = [delay for each in listeners for delay in each.delays()]
    p50, p95 = (float(np.percentile(delays, x)) if delays else None for x in (50, 95))
    results = max(1, sum(each.results for each in listeners))
    revised = sum(each.revised for each in listeners) / results
    return LiveMeasures(seconds / audio, p50, p95, revised, listeners[0].stream.state.nbytes)


def listen(recognizer: OnlineRecognizer, listeners: Sequence[Listener]) -> None:
    """Streams the recordings of all listeners at once, to the end of the longest."""
    going = list(listeners)
    while going:
        for each in going:
            each.hear()
        while ready := [each for each in going if recognizer.is_ready(each.stream)]:
            recognizer.decode([each.stream for each in ready])
            for each in ready:
                each.look()
        going = [each for each in going if not each.stream.is_finished]


class UnsharedPickler(pickle.Pickler):
    """Leaves out language models, which all streams share."""

    def persistent_id(self, obj: object) -> str | None:
        return "lm" if isinstance(obj, NGram) else None


def count_search_bytes(stream: OnlineStream) -> int:
    """Bytes of a stream's hypotheses and of the frames that are kept for them, as a pickle."""
    file = io.BytesIO()
    UnsharedPickler(file).dump(stream.search)
    return file.tell()


def measure_growth(
    recognizer: OnlineRecognizer, recordings: Sequence[Samples], minutes: float
) -> tuple[int, int]:
    """Bytes by which the process grows during a stream, after a tenth of it; the largest search.

    The recordings come one after another, again and again; endpoints are reset.
    """
    process, stream = psutil.Process(), recognizer.create_stream()
    heard, start, whole = 0, process.memory_info().rss, 60 * RATE * minutes
    largest = 0
    for samples in itertools.cycle(recordings):
        stream.accept_waveform(RATE, samples)
        while recognizer.is_ready(stream):
            recognizer.decode([stream])
            largest = max(largest, count_search_bytes(stream))
            if recognizer.is_endpoint(stream):
                recognizer.reset(stream)
        heard += len(samples)
        start = start if heard > whole / 10 else process.memory_info().rss
        if heard >= whole:
            return int(process.memory_info().rss - start), largest
    raise AssertionError("unreachable")


def measure_steps(run: TrainedRun, chunk: int, rounds: int = 50) -> dict[str, float]:
    """Seconds of a step of the model alone on the CPU, for one stream: torch, and onnxruntime.

    Cost: the least of `rounds` steps each.
    """
    import onnxruntime

    model = deepcopy(require_streaming(run)[0]).cpu()
    state = initial_stream_state(model)
    frames = torch.randn(1, chunk * model.config.subsampling, BINS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(export_recognizer(run, chunk), options)
    inputs = {name: x.numpy() for name, x in state.tensors().items() if x.numel()}
    inputs |= {"frames": frames.numpy(), "lengths": np.array([frames.shape[1]])}
    steps: dict[str, Callable[[], object]] = {
        "torch": lambda: stream_step(model, frames, state),
        "onnxruntime": lambda: session.run(None, inputs),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: min(each) for name, each in times.items()}
