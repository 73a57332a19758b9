"""Recordings as labels and words with times, and as pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattn_core.errors import expected, quote
from linattn_models.basics.files import replace_file
from linattn_models.ctc import AlignedPhone, Hypothesis
from speech.audio import read_audio
from speech.decoding import Search, mean_confidence
from speech.features import STEP_SECONDS, Frames, filterbank, normalize
from speech.models import TrainedRun
from speech.running import RunningNorm
from speech.sources import File
from speech.units import Units

LONGEST_SOFTMAX = 24_000  # frames, four minutes: its time and memory are quadratic
LABELED = 0.3  # a probability from which on a label has its curve in the picture
INCHES_PER_SECOND = 3.0


@dataclass(frozen=True)
class Transcript:
    """What a recording may say.

    Attributes:
        path: the recording.
        frames: (frames, 40), not normalized.
        posteriors: (output frames, classes), probabilities.
        hypotheses: the best first.
        frame_seconds: from one output frame to the next.
        units: the labels of the classes.
    """

    path: Path
    frames: Frames
    posteriors: np.ndarray
    hypotheses: list[Hypothesis]
    frame_seconds: float
    units: Units

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; times in seconds."""
        return {
            "file": str(self.path),
            "seconds": round(len(self.frames) * STEP_SECONDS, 3),
            "hypotheses": [self._hypothesis(item) for item in self.hypotheses],
        }

    def lines(self) -> list[str]:
        """For people: each hypothesis, and of the best each word's or phone's time."""
        hypotheses = self.to_dict()["hypotheses"]
        rows = [f"{item['log_probability']:10.3f}  {item['text']}" for item in hypotheses]
        noun = "word" if self.units.spell else self.units.noun
        times = [
            f"  {x['start']:7.2f} {x['end']:7.2f}  {x[noun]:4} {x['confidence']:.2f}"
            for hypothesis in hypotheses[:1]
            for x in hypothesis[f"{noun}s"]
        ]
        return [escape_unprintable(str(self.path)), *rows, *times]

    def _hypothesis(self, item: Hypothesis) -> dict[str, Any]:
        noun, labels, aligned = self.units.noun, self.units.labels(item.labels), item.phones
        values: dict[str, Any] = {
            "log_probability": round(item.log_probability, 4),
            "score": round(item.score, 4),
            "text": self.units.text(labels),
        }
        if self.units.spell:
            values["words"] = [
                self._times("word", word.word, aligned[word.first : word.last + 1])
                for word in self.units.words(labels)
            ]
        named = zip(labels, aligned, strict=True)
        values[f"{noun}s"] = [self._times(noun, label, [where]) for label, where in named]
        return values

    def _times(self, noun: str, name: str, aligned: Sequence[AlignedPhone]) -> dict[str, Any]:
        return {
            noun: name,
            "start": round(aligned[0].first * self.frame_seconds, 3),
            "end": round((aligned[-1].last + 1) * self.frame_seconds, 3),
            "confidence": round(mean_confidence(aligned), 4),
        }


def escape_unprintable(name: str) -> str:
    """The name of a file on one line: as it is, or escaped where that cannot be printed."""
    return name if name.isprintable() else quote(name)


@torch.no_grad()
def transcribe(run: TrainedRun, path: Path, search: Search, n_best: int) -> Transcript:
    """The labels of a recording, whose frames are normalized as of one speaker, or running."""
    frames = filterbank(read_audio(File(path)))
    if len(frames) > LONGEST_SOFTMAX and run.config["attention"] == "softmax":
        wanted = f"at most {LONGEST_SOFTMAX} frames for softmax attention"
        raise ValueError(expected(str(path), wanted, len(frames), "cut it at pauses"))
    if run.prior is not None:
        inputs = RunningNorm(run.prior)(frames)
    else:
        inputs = normalize([frames])[0] if run.alone == "utterance" else frames
    device = next(run.model.parameters()).device
    lengths = torch.tensor([len(frames)], device=device)
    log_probabilities = run.model(torch.from_numpy(inputs)[None].to(device), lengths)
    ends = run.model.output_lengths(lengths)
    (hypotheses,) = search.hypotheses(log_probabilities, ends, n_best)
    posteriors = log_probabilities[0].exp().cpu().numpy()
    step = STEP_SECONDS * run.config["subsampling"]
    return Transcript(path, frames, posteriors, hypotheses, step, run.units)


def write_picture(path: Path, transcript: Transcript, title: str) -> None:
    """Draws the filterbank as a PNG at `path`, above it the probabilities of the labels."""
    seconds = len(transcript.frames) * STEP_SECONDS
    size = (min(40.0, max(6.0, INCHES_PER_SECOND * seconds)), 5.0)
    drawing = Figure(figsize=size, layout="constrained")
    top, bottom = drawing.subplots(2, 1, sharex=True)
    _draw_posteriors(top, transcript)
    extent = (0.0, seconds, 0.5, transcript.frames.shape[1] + 0.5)
    bottom.imshow(transcript.frames.T, origin="lower", aspect="auto", extent=extent, cmap="magma")
    bottom.set(xlabel="seconds", ylabel="mel bin", xlim=(0.0, seconds))
    top.set(ylabel="probability", ylim=(0.0, 1.15))
    top.set_title(title, parse_math=False)  # names of files and labels may have dollar signs
    content = io.BytesIO()
    drawing.savefig(content, format="png", dpi=100)
    replace_file(path, content.getvalue())


def _draw_posteriors(place: Axes, transcript: Transcript) -> None:
    """A curve for each label, named where its probability is highest; the blank in gray."""
    posteriors, step = transcript.posteriors, transcript.frame_seconds
    times = [(place + 0.5) * step for place in range(len(posteriors))]
    place.plot(times, posteriors[:, 0], color="lightgray", linewidth=1)
    for number in range(1, posteriors.shape[1]):
        curve = posteriors[:, number]
        if curve.max() >= LABELED:
            place.plot(times, curve, linewidth=1.2)
    for aligned in transcript.hypotheses[0].phones if transcript.hypotheses else ():
        first, last = aligned.first, aligned.last
        at = first + int(posteriors[first : last + 1, aligned.phone].argmax())
        height = float(posteriors[at, aligned.phone])
        (name,) = transcript.units.labels([aligned.phone])
        place.text(times[at], height + 0.02, name, ha="center", size=9, parse_math=False)
