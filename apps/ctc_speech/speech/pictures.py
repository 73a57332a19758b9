"""A recording as a picture: its filterbank, and above it the probabilities of the phones."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattn_models.files import replace_file
from speech.features import STEP_SECONDS
from speech.transcription import Transcript

LABELED = 0.3  # a probability from which on a phone has its name in the picture
INCHES_PER_SECOND = 3.0


def write_picture(path: Path, transcript: Transcript, title: str) -> None:
    """Draws `transcript` as a PNG at `path`."""
    seconds = len(transcript.frames) * STEP_SECONDS
    size = (min(40.0, max(6.0, INCHES_PER_SECOND * seconds)), 5.0)
    drawing = Figure(figsize=size, layout="constrained")
    top, bottom = drawing.subplots(2, 1, sharex=True)
    _draw_posteriors(top, transcript)
    extent = (0.0, seconds, 0.5, transcript.frames.shape[1] + 0.5)
    bottom.imshow(transcript.frames.T, origin="lower", aspect="auto", extent=extent, cmap="magma")
    bottom.set(xlabel="seconds", ylabel="mel bin", xlim=(0.0, seconds))
    top.set(ylabel="probability", ylim=(0.0, 1.15))
    top.set_title(title, parse_math=False)  # names of files and phones may have dollar signs
    content = io.BytesIO()
    drawing.savefig(content, format="png", dpi=100)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.getvalue())


def _draw_posteriors(place: Axes, transcript: Transcript) -> None:
    """A curve for each phone, named where its probability is highest; the blank in gray."""
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
        name = transcript.name(aligned.phone)
        place.text(times[at], height + 0.02, name, ha="center", size=9, parse_math=False)
