"""A recognizer for speech as it arrives, with the calls that users of sherpa-onnx know.

recognizer = OnlineRecognizer(load_run(folder), Search())
stream = recognizer.create_stream()
stream.accept_waveform(16_000, samples)           # any number of times, any number of samples
while recognizer.is_ready(stream):
    recognizer.decode([stream])                   # or many streams at once
print(recognizer.result(stream).text)

At the end, stream.input_finished() lets the rest be decoded, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import at_least
from linattn_models.ctc import (
    BLANK,
    AlignedPhone,
    BeamSearch,
    StreamState,
    initial_stream_state,
    stream_flush,
    stream_step,
)
from speech.decoding import Search, mean_confidence
from speech.features import BINS, STEP_SECONDS
from speech.frame_stream import FrameStream
from speech.lexicon import Lexicon
from speech.models import Recognizer, TrainedRun
from speech.running import Prior, RunningNorm
from speech.words import FoundWord, Parse, WordFinder

LONGEST_OPEN = 200  # output frames (8 s) after which phones are final even if hypotheses differ


@dataclass(frozen=True)
class EndpointRules:
    """When an utterance has ended, in seconds.

    Attributes:
        silence: without any phone.
        pause: after the last phone.
        longest: of an utterance, also in the middle of a word.

    Raises:
        ValueError: what is no number, is negative or NaN.
    """

    silence: float = 2.4
    pause: float = 1.2
    longest: float = 20.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if not isinstance(seconds, int | float) or not seconds >= 0:
                raise ValueError(expected(name, "a number of at least 0 seconds", quote(seconds)))


@dataclass(frozen=True)
class Result:
    """What a stream has said since the last reset.

    Attributes:
        tokens: the labels: phones, characters or pieces of words.
        times: start and end of each, in seconds since the stream began.
        confidence: geometric mean of the labels' probabilities; 1 without labels.
        segment: how many resets came before.
        is_final: whether no later audio changes it: the input has ended and all of it is decoded.
        words: those that the labels spell, or those of the lexicon that are nearest to the phones;
            None of phones without a lexicon.
        word_times: start and end of each word.
    """

    tokens: tuple[str, ...]
    times: tuple[tuple[float, float], ...]
    confidence: float
    segment: int
    is_final: bool
    words: tuple[str, ...] | None = None
    word_times: tuple[tuple[float, float], ...] = ()

    @property
    def text(self) -> str:
        """The words on one line, or without a lexicon the phones."""
        return " ".join(self.tokens if self.words is None else self.words)


def require_streaming(run: TrainedRun) -> tuple[Recognizer, Prior]:
    """The model and the prior of a run that streams; refuses other runs."""
    prior, model = run.prior, run.model
    if prior is None or not model.streams:
        advice = "train one with --preset streaming"
        raise ValueError(expected("the run", "one that streams", run.label, advice))
    return model, prior


class OnlineStream:
    """The audio of one person, and what is known of it; made by `create_stream`."""

    def __init__(self, prior: Prior, state: StreamState, search: BeamSearch) -> None:
        self.state = state
        self.search = search
        self.segment = 0
        self.final: list[AlignedPhone] = []  # phones of the segment that are not in the search
        self.num_frames = 0  # output frames so far
        self.begin = 0  # the first output frame of the segment
        self.is_finished = False
        self.unfinished = BLANK  # the phone of a segment before that still goes on
        self.parse: Parse | None = None  # the words of the final phones
        self._audio = FrameStream()
        self._norm = RunningNorm(prior)
        self._pending = np.zeros((0, BINS), np.float32)  # normalized

    def accept_waveform(self, rate: int, samples: np.ndarray) -> None:
        """Takes more samples.

        Args:
            rate: samples a second, the same in all calls of a stream.
            samples: (n,), any n: floating point in -1..1, or int16 or int32 in its whole range.

        Raises:
            ValueError: another rate than before or no number, samples that are NaN or far outside
                of -1..1 or of another dtype, several channels, or audio after `input_finished`.
        """
        if self.is_finished:
            advice = "make another stream"
            raise ValueError(expected("the stream", "open", "after input_finished", advice))
        self._audio.accept(rate, samples)

    def input_finished(self) -> None:
        """Says that no more samples come, so that the rest is decoded, too."""
        if not self.is_finished:
            self._audio.finish()
            self.is_finished = True

    @property
    def num_pending(self) -> int:
        """Frames that are not decoded yet."""
        return len(self._pending) + self._audio.num_frames

    def next_frames(self, count: int) -> Tensor:
        """The next frames (at most `count`, 40), which wait until `drop_frames`."""
        if self._audio.num_frames:  # computed here, as a few at a time would cost much more
            new = self._norm(self._audio.take())
            self._pending = np.concatenate([self._pending, new])
        return torch.from_numpy(self._pending[:count])

    def drop_frames(self, count: int) -> None:
        """Forgets what `next_frames` gave."""
        self._pending = self._pending[count:]


class OnlineRecognizer:
    """Decodes streams of speech chunk by chunk.

    Args:
        run: of the preset streaming.
        search: beam and language model.
        chunk: output frames of a chunk, of 40 ms each; 8 are 320 ms. More is later, and better.
        endpoints: when an utterance has ended.
        lexicon: for words beside the phones; none by default.

    Raises:
        ValueError: a run of another preset, numbers out of range, or a lexicon of other labels.
    """

    def __init__(
        self,
        run: TrainedRun,
        search: Search,
        chunk: int = 8,
        endpoints: EndpointRules | None = None,
        lexicon: Lexicon | None = None,
    ) -> None:
        model, self.prior = require_streaming(run)
        self.model, self.units = model, run.units
        self.chunk = at_least("chunk", chunk, 1)
        self.endpoints = endpoints or EndpointRules()
        self.frame_seconds = STEP_SECONDS * model.config.subsampling
        self._frames = self.chunk * model.config.subsampling
        self._device = next(model.parameters()).device
        self._start = initial_stream_state(model)
        self._search = search
        if lexicon is not None and run.units.spell:
            wanted = f"none for a run whose {run.units.noun}s spell words"
            raise ValueError(expected("the lexicon", wanted, "one"))
        self._finder = None if lexicon is None else WordFinder(lexicon, run.units.inventory)

    def create_stream(self) -> OnlineStream:
        """A stream without audio."""
        return OnlineStream(self.prior, self._start, self._new_search())

    def is_ready(self, stream: OnlineStream) -> bool:
        """Whether `decode` has something to do: a whole chunk, or the rest of a finished input."""
        return stream.num_pending >= self._frames or (stream.is_finished and stream.num_pending > 0)

    def decode(self, streams: Sequence[OnlineStream]) -> None:
        """One chunk of each stream that is ready, all in one batch.

        Raises:
            ValueError: a stream of a recognizer with another model; no stream loses audio.
        """
        ready = [stream for stream in dict.fromkeys(streams) if self.is_ready(stream)]
        # The last chunk ends a stream, also where it is whole.
        last = [x for x in ready if x.is_finished and x.num_pending <= self._frames]
        others = [x for x in ready if x not in last]
        if others:
            frames = torch.stack([x.next_frames(self._frames) for x in others])
            states = StreamState.cat([x.state for x in others])
            outputs, states = stream_step(self.model, frames.to(self._device), states)
            for row, stream in enumerate(others):
                stream.state = states.index_select(torch.tensor([row]))
                self._search_frames(stream, outputs[row])
        if last:
            pieces = [x.next_frames(self._frames) for x in last]
            lengths = torch.tensor([len(piece) for piece in pieces])
            states = StreamState.cat([x.state for x in last])
            padded = pad_sequence(pieces, batch_first=True).to(self._device)
            outputs = stream_flush(self.model, padded, states, lengths)
            ends = self.model.output_lengths(lengths).tolist()
            for stream, own, end in zip(last, outputs, ends, strict=True):
                self._search_frames(stream, own[:end])

    def result(self, stream: OnlineStream) -> Result:
        """What was said since the last reset; later audio may change the newest phones."""
        phones = self._phones(stream)
        step = self.frame_seconds
        words = self._find_words(stream, phones)
        return Result(
            tokens=self.units.labels(phone.phone for phone in phones),
            times=tuple((x.first * step, (x.last + 1) * step) for x in phones),
            confidence=mean_confidence(phones),
            segment=stream.segment,
            is_final=stream.is_finished and not stream.num_pending,
            words=None if words is None else tuple(word.word for word in words),
            word_times=tuple(
                (phones[x.first].first * step, (phones[x.last].last + 1) * step)
                for x in words or ()
            ),
        )

    def is_endpoint(self, stream: OnlineStream) -> bool:
        """Whether an utterance has ended, by the rules."""
        phones = self._phones(stream)
        length = (stream.num_frames - stream.begin) * self.frame_seconds
        if length >= self.endpoints.longest:
            return True
        if not phones:
            return length >= self.endpoints.silence
        pause = (stream.num_frames - 1 - phones[-1].last) * self.frame_seconds
        return pause >= self.endpoints.pause

    def reset(self, stream: OnlineStream) -> None:
        """Begins the next segment; the audio goes on, and the model remembers what it heard.

        A phone that goes on across the reset is in the segment where it began.
        """
        phones = self._phones(stream)
        if phones and phones[-1].last == stream.num_frames - 1:
            stream.unfinished = phones[-1].phone
        stream.search, stream.final, stream.parse = self._new_search(), [], None
        stream.begin, stream.segment = stream.num_frames, stream.segment + 1

    def _search_frames(self, stream: OnlineStream, outputs: Tensor) -> None:
        stream.drop_frames(self._frames)
        if stream.unfinished != BLANK:
            outputs = _end_phone(outputs, stream)
        stream.num_frames += len(outputs)
        stream.search.feed(outputs)
        final = [phone.shift(stream.begin) for phone in stream.search.commit(LONGEST_OPEN)]
        stream.final += final
        stream.parse = self._read_phones(stream.parse, final)

    def _read_phones(self, parse: Parse | None, phones: Sequence[AlignedPhone]) -> Parse | None:
        """The parse with more phones; None without a lexicon."""
        if self._finder is None:
            return None
        parse = parse or self._finder.start()
        for phone in phones:
            parse = self._finder.advance(parse, phone.phone)
        return parse

    def _find_words(
        self, stream: OnlineStream, phones: Sequence[AlignedPhone]
    ) -> list[FoundWord] | None:
        """The words of the segment, as places in its labels; None of phones without a lexicon."""
        if self.units.spell:
            return self.units.words(self.units.labels(phone.phone for phone in phones))
        parse = self._read_phones(stream.parse, phones[len(stream.final) :])
        return None if self._finder is None or parse is None else self._finder.words(parse)

    def _phones(self, stream: OnlineStream) -> list[AlignedPhone]:
        best = stream.search.result()
        newest = best[0].phones if best else ()
        return stream.final + [phone.shift(stream.begin) for phone in newest]

    def _new_search(self) -> BeamSearch:
        return self._search.begin(len(self.units.inventory) + 1)


def _end_phone(outputs: Tensor, stream: OnlineStream) -> Tensor:
    """The outputs with blanks for the frames that belong to the phone of the segment before."""
    others = (outputs.argmax(1) != stream.unfinished).nonzero()
    count = int(others[0]) if len(others) else len(outputs)
    if len(others):
        stream.unfinished = BLANK
    outputs = outputs.clone()
    outputs[:count] = -torch.inf
    outputs[:count, BLANK] = 0.0
    return outputs
