"""A stream says what the whole recording says, alone or beside others; bad input is refused."""

from __future__ import annotations

import copy
import io
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from linattn_lab.figures import read_figures
from linattn_models.ctc import CTCTransformer, ctc_beam_search
from speech.audio import Samples, resample
from speech.decoding import Search
from speech.features import Frames, filterbank
from speech.frame_stream import FrameStream
from speech.lexicon import parse_lexicon
from speech.models import TrainedRun, build_model
from speech.online import EndpointRules, OnlineRecognizer, OnlineStream
from speech.presets import smoke
from speech.running import RunningNorm
from speech.words import WordFinder
from stream import listen
from tests.apps.app_scripts import Script
from tests.apps.ctc_speech.conftest import PRIOR, smoke_flags, tone

NEVER = EndpointRules(silence=1e9, pause=1e9, longest=1e9)


def babble(seconds: float, seed: int = 0) -> np.ndarray:
    """Bursts of tones and pauses, (samples,) float32 at 16 kHz."""
    draws = np.random.default_rng(seed)
    parts = [tone(draws.uniform(200, 4_000), 0.1) for _ in range(round(10 * seconds))]
    return np.concatenate([x * np.float32(draws.integers(0, 2)) for x in parts])


def recognizer_of(run: TrainedRun, **rules: float) -> OnlineRecognizer:
    endpoints = replace(NEVER, **rules)
    return OnlineRecognizer(run, Search(), 4, endpoints)


def feed(stream: OnlineStream, samples: np.ndarray, pieces: list[int]) -> None:
    for part in np.split(samples, np.cumsum(pieces)):
        stream.accept_waveform(16_000, part)
    stream.input_finished()


def decode_all(recognizer: OnlineRecognizer, streams: list[OnlineStream]) -> None:
    while any(map(recognizer.is_ready, streams)):
        recognizer.decode(streams)


def test_streams_say_what_the_whole_recordings_say(streaming_run: TrainedRun) -> None:
    recognizer, model = recognizer_of(streaming_run), streaming_run.model
    assert isinstance(model, CTCTransformer)
    recordings = [babble(seconds, seed) for seed, seconds in enumerate((3.0, 1.3, 0.4))]
    streams = [recognizer.create_stream() for _ in recordings]
    for stream, samples in zip(streams, recordings, strict=True):
        feed(stream, samples, [100, 5_000, 333])
    decode_all(recognizer, streams)
    for stream, samples in zip(streams, recordings, strict=True):
        frames = torch.from_numpy(RunningNorm(PRIOR)(filterbank(samples)))[None]
        with torch.no_grad():
            (whole,) = ctc_beam_search(model(frames, chunk=4))[0]
        result = recognizer.result(stream)
        assert result.tokens == tuple(streaming_run.units.inventory[x - 1] for x in whole.labels)
        assert result.is_final and 0 < result.confidence <= 1
        assert all(0 <= a < b <= len(samples) / 16_000 + 0.04 for a, b in result.times)
    assert sum(len(recognizer.result(stream).tokens) for stream in streams) > 10


def test_words_are_those_of_all_phones_at_once(streaming_run: TrainedRun) -> None:
    """A stream that is named twice has one chunk decoded."""
    inventory = streaming_run.units.inventory
    lexicon = parse_lexicon(["one A B", "two C D E", "three B", "four E A"], "x")
    recognizer = OnlineRecognizer(streaming_run, Search(), 4, NEVER, lexicon)
    stream, samples = recognizer.create_stream(), babble(3.0)
    assert recognizer.result(stream).words == ()
    feed(stream, samples, [])
    decode_all(recognizer, [stream, stream])
    assert stream.num_frames == -(-len(filterbank(samples)) // 4)
    result, finder = recognizer.result(stream), WordFinder(lexicon, inventory)
    parse = finder.start()
    for token in result.tokens:
        parse = finder.advance(parse, inventory.index(token) + 1)
    found = finder.words(parse)
    assert result.words == tuple(x.word for x in found) and len(found) > 2
    for word, (start, end) in zip(found, result.word_times, strict=True):
        assert start == result.times[word.first][0] and end == result.times[word.last][1]
    recognizer.reset(stream)
    assert recognizer.result(stream).words == ()


def take_frames(stream: FrameStream, rate: int, samples: Samples) -> Frames:
    """Those that are whole with these samples."""
    stream.accept(rate, samples)
    count, frames = stream.num_frames, stream.take()
    assert len(frames) == count and not stream.num_frames
    return frames


def test_frames_of_pieces_are_those_of_the_whole() -> None:
    samples, stream = babble(0.5), FrameStream()
    parts = [take_frames(stream, 16_000, part) for part in np.array_split(samples, 23)]
    np.testing.assert_array_equal(np.concatenate(parts), filterbank(samples))


def test_other_rates_give_the_frames_of_the_whole() -> None:
    samples, stream = babble(1.0)[::2], FrameStream()
    parts = [take_frames(stream, 8_000, part) for part in np.array_split(samples, 7)]
    stream.finish()
    frames = np.concatenate([*parts, stream.take()])
    whole = filterbank(resample(samples, 8_000))
    np.testing.assert_allclose(frames, whole, atol=1e-4)


def test_a_phone_across_several_endpoints_is_in_one_segment(streaming_run: TrainedRun) -> None:
    """A reset after each chunk, twice, gives the phones of the likeliest path."""
    recognizer, samples = recognizer_of(streaming_run), babble(4.0)
    stream, tokens = recognizer.create_stream(), []
    feed(stream, samples, [])
    while recognizer.is_ready(stream):
        recognizer.decode([stream])
        tokens += recognizer.result(stream).tokens
        recognizer.reset(stream)
        recognizer.reset(stream)
    frames = torch.from_numpy(RunningNorm(PRIOR)(filterbank(samples)))[None]
    (greedy,) = streaming_run.model.greedy(frames, chunk=4)
    assert tokens == [streaming_run.units.inventory[phone - 1] for phone in greedy]


def test_bad_input_is_refused_in_one_sentence(streaming_run: TrainedRun) -> None:
    stream, samples = recognizer_of(streaming_run).create_stream(), babble(0.5)
    stream.accept_waveform(16_000, samples)
    bad = samples.copy()
    bad[7] = np.nan
    for rate, given, name in (
        (8_000, samples, "rate"),
        (16_000, bad, "samples"),
        (16_000, samples[:, None], "samples"),
        (16_000, (samples * 100).astype(np.uint8), "samples"),
        (16_000, samples * 32_768, "samples: .*divide samples of 16 bits by 32,768"),
        ("16000", samples, "rate: .*'16000'"),
    ):
        with pytest.raises(ValueError, match=name):
            stream.accept_waveform(rate, given)  # type: ignore[arg-type]
    for number in (np.nan, np.inf, 999, 0, "16000", None):
        with pytest.raises(ValueError, match="rate: expected a number from 1,000"):
            FrameStream().accept(number, samples)  # type: ignore[arg-type]
    FrameStream().accept(16_000, np.full(800, 1.5, np.float32))  # as of resampling
    stream.input_finished()
    with pytest.raises(ValueError, match="input_finished"):
        stream.accept_waveform(16_000, samples)
    plain = TrainedRun(
        build_model(smoke("linear"), 5), {**streaming_run.config, "normalize": "speaker"}, 0
    )
    with pytest.raises(ValueError, match="streaming"):
        recognizer_of(plain)


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_integers_are_what_soundfile_makes_of_them(kind: type[np.signedinteger]) -> None:
    whole = (babble(0.5) * -float(np.iinfo(kind).min)).astype(kind)
    file = io.BytesIO()
    soundfile.write(file, whole, 16_000, format="WAV", subtype=f"PCM_{8 * whole.itemsize}")
    file.seek(0)
    read, _ = soundfile.read(file, dtype="float32")
    ours, theirs = (take_frames(FrameStream(), 16_000, x) for x in (whole, read))
    np.testing.assert_array_equal(ours, theirs)


def test_a_stream_of_another_model_is_refused(streaming_run: TrainedRun) -> None:
    other = copy.deepcopy(streaming_run.model)
    with torch.no_grad():
        other.output.weight.add_(1)
    recognizer = recognizer_of(streaming_run)
    foreign = recognizer_of(replace(streaming_run, model=other)).create_stream()
    beside = [recognizer.create_stream() for _ in range(2)]
    for stream in (foreign, *beside):
        feed(stream, babble(1.0), [])
    with pytest.raises(ValueError, match="state"):
        recognizer.decode([foreign])
    with pytest.raises(ValueError, match="state"):
        recognizer.decode([beside[0], foreign])
    for stream in beside:  # neither has lost audio
        decode_all(recognizer, [stream])
    assert recognizer.result(beside[0]) == recognizer.result(beside[1])
    assert beside[0].num_frames == 25


@pytest.mark.parametrize("name", ["silence", "pause", "longest"])
@pytest.mark.parametrize("seconds", [np.nan, -1.0, "1.2"])
def test_an_endpoint_after_no_time_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=name):
        EndpointRules(**{name: seconds})


class Microphone:
    """A device that Ctrl-C interrupts while it is read for the third time."""

    def __init__(self, **settings: object) -> None:
        self.reads = 0

    def __enter__(self) -> Microphone:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, size: int) -> tuple[np.ndarray, bool]:
        self.reads += 1
        if self.reads == 3:
            signal.raise_signal(signal.SIGINT)
        return np.full((size, 1), self.reads, np.float32), False


def test_ctrl_c_ends_the_microphone_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(InputStream=Microphone))
    handler = signal.getsignal(signal.SIGINT)
    pieces = list(listen(16_000))
    assert [piece.mean() for piece in pieces] == [1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:copyreg")  # of torch's own export
def test_a_recording_is_recognized_as_it_arrives(
    tones: Path, tmp_path: Path, script: Script
) -> None:
    chunks = ["--chunk", 2, "--train-chunks", 1, 2, "--normalize", "running", "--augment"]
    done = script("train", *smoke_flags(tones, tmp_path / "run"), *chunks)
    assert done.code == 0, done.stderr
    soundfile.write(tmp_path / "a.wav", babble(2.0), 16_000)
    lexicon = tmp_path / "x.dict"
    lexicon.write_text("one LOW\ntwo MID HIGH\n")
    flags = ["--lexicon", lexicon, "--chunk", 4, tmp_path / "a.wav"]
    done = script("stream", "--run", tmp_path / "run", *flags)
    assert done.code == 0, done.stderr
    assert all(len(line.split()) >= 4 for line in done.stdout.splitlines())
    done = script("stream", "--run", tmp_path / "run")
    assert done.code != 0 and "FILE" in done.stderr
    flags = ["--data-dir", tones, "--cache", tmp_path / "cache", "--split", "test", "--chunk", 2]
    done = script("transcribe", "--run", tmp_path / "run", *flags)
    assert done.code == 0, done.stderr
    figures = read_figures(tmp_path / "run")
    rate = figures["test/running/chunk 2/average 1/greedy/phoneme_error_rate"]
    assert rate == figures["phoneme_error_rate"]  # the chunk of the run
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    done = script("export_onnx", "--run", tmp_path / "run", "--out", tmp_path / "new" / "a.onnx")
    assert done.code == 0, done.stderr
    assert "chunk 8" in done.stdout and (tmp_path / "new" / "a.onnx").stat().st_size > 10_000
